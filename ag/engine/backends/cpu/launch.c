/* A small launch of a CPU kernel in one call of compiled code: what eager ops of small tensors wait for.

`Launch` is called as `Backend.launch` is. Where everything is known and ordinary it looks up how to launch, has memory
allocated for the result, and runs the kernel; in all other cases, and if there was no compiler, the method in Python
does it (`ag.engine.backends.cpu.native`, which makes one of these for each device), so that what is here decides
nothing. Ordinary means: one result made afresh, nobody records or takes times, operands are buffers of this device in
blocks of their own, and the same shapes, types and parameters came before.

It is given, once:

    place       the device: its `arena` gives memory, and its `starts` make pointers of addresses
    table       name of a primitive -> (ready, names)
        ready   (shape, type, ..., parameters...) -> a `Ready`, whose items are read below, or None; where zeros of
                either sign differ, keys have signs behind, which are not looked for here
        names   of the parameters, in the order of the key
    open        a dict, empty if nobody records
    settings    whose `events` is None if nobody takes times
    slowly      the method in Python
    buffer      the class of operands and results
    block       the class of blocks that nobody lends
    bits        of an address that are the place in a segment
    address     of the function that runs a row of words

Knows no kernel and no op. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

enum { OPERANDS = 8, KEY = 32, WORDS = 128, HEAD = 3 };            /* the most of each; words before the pointers */
enum { NBYTES = 1, SHAPE, DTYPE, ROW };                           /* items of `Ready` */
enum { BACKEND, BLOCK, ADDRESS, SHAPE_OF, DTYPE_OF, CONSTANT, NATIVE, SLOTS }; /* of a buffer */
static const char *const SLOT[SLOTS] = {"backend", "block", "address", "shape", "dtype", "constant", "_native"};

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *place, *table, *open, *settings, *slowly;
    PyTypeObject *buffer, *block;
    Py_ssize_t slot[SLOTS];
    int bits;
    void (*run)(const int64_t *);
} Launch;

enum { NAME, EVENTS, ARENA, ALLOC, STARTS, OF_BLOCK, ATTRIBUTES };
static const char *const ATTRIBUTE[ATTRIBUTES] = {"name", "events", "arena", "alloc", "starts", "address"};
static PyObject *attribute[ATTRIBUTES]; /* the same as Python's strings, for ever */

#define ITEM PyTuple_GET_ITEM
#define FIELD(self, x, which) (*(PyObject **)((char *)(x) + (self)->slot[which]))

/* The entry of `ready` for a call, borrowed; NULL without an error where Python has to look. */
static PyObject *known(Launch *self, PyObject *entry, PyObject *const *args, Py_ssize_t operands, PyObject *kwnames) {
    PyObject *ready = ITEM(entry, 0), *names = ITEM(entry, 1), *items[KEY];
    Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), count = 0;
    if (operands < 1 || operands > OPERANDS || given != PyTuple_GET_SIZE(names) || 2 * operands + given > KEY)
        return NULL;
    for (Py_ssize_t i = 0; i < operands; i++) {
        PyObject *x = args[i];
        if (Py_TYPE(x) != self->buffer || FIELD(self, x, BACKEND) != self->place || FIELD(self, x, BLOCK) == NULL ||
            Py_TYPE(FIELD(self, x, BLOCK)) != self->block)
            return NULL;
        items[count++] = FIELD(self, x, SHAPE_OF);
        items[count++] = FIELD(self, x, DTYPE_OF);
    }
    for (Py_ssize_t k = 0; k < given; k++) {
        PyObject *name = ITEM(names, k), *value = NULL;
        for (Py_ssize_t i = 0; i < given && value == NULL; i++) /* names in calls are interned, as those of functions */
            if (ITEM(kwnames, i) == name)
                value = args[operands + i];
        if (value == NULL)
            return NULL;
        items[count++] = value;
    }
    PyObject *key = PyTuple_New(count);
    if (key == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(key, i, Py_NewRef(items[i]));
    PyObject *found = PyDict_GetItemWithError(ready, key);
    Py_DECREF(key);
    return found == NULL || found == Py_None || PyBytes_GET_SIZE(ITEM(found, ROW)) == 0 ? NULL : found;
}

/* A buffer of memory that was just allocated; a new reference. */
static PyObject *made(Launch *self, PyObject *found) {
    PyObject *arena = PyObject_GetAttr(self->place, attribute[ARENA]);
    if (arena == NULL)
        return NULL;
    PyObject *block = PyObject_CallMethodOneArg(arena, attribute[ALLOC], ITEM(found, NBYTES));
    Py_DECREF(arena);
    if (block == NULL)
        return NULL;
    PyObject *address = PyObject_GetAttr(block, attribute[OF_BLOCK]);
    PyObject *out = address == NULL ? NULL : self->buffer->tp_alloc(self->buffer, 0);
    if (out == NULL) {
        Py_DECREF(block);
        Py_XDECREF(address);
        return NULL;
    }
    FIELD(self, out, BACKEND) = Py_NewRef(self->place);
    FIELD(self, out, BLOCK) = block;
    FIELD(self, out, ADDRESS) = address;
    FIELD(self, out, SHAPE_OF) = Py_NewRef(ITEM(found, SHAPE));
    FIELD(self, out, DTYPE_OF) = Py_NewRef(ITEM(found, DTYPE));
    FIELD(self, out, CONSTANT) = Py_NewRef(Py_None);
    FIELD(self, out, NATIVE) = Py_NewRef(Py_None);
    return out;
}

/* Where a buffer lies in memory: the start of its segment, and its address there. 0: Python has to look. */
static int64_t pointer(Launch *self, PyObject *x, PyObject *starts) {
    uint64_t address = PyLong_AsUnsignedLongLong(FIELD(self, x, ADDRESS));
    uint64_t segment = address >> self->bits;
    if (segment >= (uint64_t)PyList_GET_SIZE(starts))
        return 0;
    return (int64_t)(address + PyLong_AsLongLong(PyList_GET_ITEM(starts, (Py_ssize_t)segment)));
}

/* Run the kernel; whether that was possible. */
static int ran(Launch *self, PyObject *row, PyObject *out, PyObject *const *args, Py_ssize_t operands) {
    int64_t words[WORDS];
    Py_ssize_t size = PyBytes_GET_SIZE(row);
    PyObject *starts = PyObject_GetAttr(self->place, attribute[STARTS]);
    int can = starts != NULL && PyList_CheckExact(starts) && size <= (Py_ssize_t)sizeof words;
    if (can) {
        memcpy(words, PyBytes_AS_STRING(row), (size_t)size);
        can = (words[HEAD] = pointer(self, out, starts)) != 0;
        for (Py_ssize_t i = 0; can && i < operands; i++)
            can = (words[HEAD + 1 + i] = pointer(self, args[i], starts)) != 0;
    }
    Py_XDECREF(starts);
    if (can)
        self->run(words);
    return can;
}

static PyObject *call(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Launch *self = (Launch *)me;
    Py_ssize_t operands = PyVectorcall_NARGS(nargsf) - 1;
    if (PyDict_GET_SIZE(self->open) == 0 && operands > 0) {
        PyObject *events = PyObject_GetAttr(self->settings, attribute[EVENTS]);
        PyObject *name = events == Py_None ? PyObject_GetAttr(args[0], attribute[NAME]) : NULL;
        PyObject *entry = name == NULL ? NULL : PyDict_GetItemWithError(self->table, name);
        PyObject *found = entry == NULL ? NULL : known(self, entry, args + 1, operands, kwnames);
        Py_XDECREF(events);
        Py_XDECREF(name);
        if (found != NULL) {
            Py_INCREF(found); /* another thread may forget it while memory is allocated */
            PyObject *out = made(self, found);
            int done = out != NULL && PyDict_GET_SIZE(self->open) == 0 && /* nobody has begun to record meanwhile */
                       ran(self, ITEM(found, ROW), out, args + 1, operands);
            Py_DECREF(found);
            if (done || (out == NULL && PyErr_Occurred()))
                return out;
            Py_XDECREF(out);
        }
        PyErr_Clear(); /* of what is looked up again */
    }
    return PyObject_Vectorcall(self->slowly, args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
}

/* ---------------------------------------------------------------------------------------------- the type */

static int traverse(Launch *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->place);
    Py_VISIT(self->table);
    Py_VISIT(self->open);
    Py_VISIT(self->settings);
    Py_VISIT(self->slowly);
    Py_VISIT(self->buffer);
    Py_VISIT(self->block);
    return 0;
}

static int clear(Launch *self) {
    Py_CLEAR(self->place);
    Py_CLEAR(self->table);
    Py_CLEAR(self->open);
    Py_CLEAR(self->settings);
    Py_CLEAR(self->slowly);
    Py_CLEAR(self->buffer);
    Py_CLEAR(self->block);
    return 0;
}

static void dealloc(Launch *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *place, *table, *open, *settings, *slowly, *buffer, *block;
    unsigned long long address;
    int bits;
    if (!PyArg_ParseTuple(args, "OO!O!OOO!O!iK:Launch", &place, &PyDict_Type, &table, &PyDict_Type, &open,
                          &settings, &slowly, &PyType_Type, &buffer, &PyType_Type, &block, &bits, &address))
        return NULL;
    Launch *self = (Launch *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = call;
    self->bits = bits;
    self->run = (void (*)(const int64_t *))(uintptr_t)address;
    self->place = Py_NewRef(place);
    self->table = Py_NewRef(table);
    self->open = Py_NewRef(open);
    self->settings = Py_NewRef(settings);
    self->slowly = Py_NewRef(slowly);
    self->buffer = (PyTypeObject *)Py_NewRef(buffer);
    self->block = (PyTypeObject *)Py_NewRef(block);
    for (int i = 0; i < SLOTS; i++) {
        PyObject *descriptor = PyObject_GetAttrString(buffer, SLOT[i]);
        if (descriptor != NULL && Py_TYPE(descriptor) != &PyMemberDescr_Type)
            PyErr_Format(PyExc_TypeError, "Launch: %s is no slot of buffers.", SLOT[i]);
        else if (descriptor != NULL)
            self->slot[i] = ((PyMemberDescrObject *)descriptor)->d_member->offset;
        Py_XDECREF(descriptor);
        if (PyErr_Occurred()) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, call), READONLY, NULL}, {NULL}};
static PyType_Slot type_slots[] = {{Py_tp_new, make},           {Py_tp_call, PyVectorcall_Call}, {Py_tp_dealloc, dealloc},
                                   {Py_tp_traverse, traverse}, {Py_tp_clear, clear},            {Py_tp_members, members},
                                   {0, NULL}};
static PyType_Spec spec = {"ag.engine.backends.cpu._launch.Launch", sizeof(Launch), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, type_slots};

static int execute(PyObject *module) {
    for (int i = 0; i < ATTRIBUTES; i++)
        if ((attribute[i] = PyUnicode_InternFromString(ATTRIBUTE[i])) == NULL)
            return -1;
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL)
        return -1;
    int status = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return status;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_launch", .m_slots = module_slots};

PyMODINIT_FUNC PyInit__launch(void) { return PyModuleDef_Init(&definition); }
