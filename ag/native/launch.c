/* `Launch`: `Backend.launch` in one call of compiled code; the method in Python is its specification, and does what is
unusual. Usual: one result, nothing records or takes times, operands of this device in blocks of their own, and shapes,
types and parameters that came before, or that `prepare` plans. It is given, once:

    place       the device: its `arena` gives memory, and its `starts` make pointers of addresses
    table       name of a primitive -> (ready, names): (shape, type, ..., parameters...) -> a `Ready` or None, and the
                names of the parameters, in the order of the key
    settings                    `events` is None if nothing takes times
    slowly, written             the method in Python; told of a buffer before it is written
    buffer, block, bits         the classes of buffers and of blocks on no loan; bits of an address within a segment
    address, record, command    on a CPU: what runs a row of words; what runs a row that threads share; a class
                                elsewhere: 0; what takes a command; its class
    constant                    ((object, name, value), ...): attributes that must have these values
    prepare                     of a primitive, a key, operands and parameters: makes the `Ready` and puts it there,
                                or returns None; left out: Python launches what is new

A row of a CPU is words with zeros for pointers. A row of Vulkan is a pair, for operands that all begin at a multiple of
16 bytes and for others: None, or a tuple with the items of `RECIPE`. `Run` replays a small program of the CPU. */

#include "native.h"
#include <stdint.h>
#include <string.h>

enum { OPERANDS = 8, KEY = 32, WORDS = 128, SHARED = 2, HEAD }; /* the most of each; a word; words before the pointers */
enum { NBYTES, SHAPE, DTYPE, ROW };                               /* items of `Ready` */
enum { KERNEL, ALGORITHMS, BEFORE, AFTER, GRID, ENDS, WRITES, SECONDS, WHOLE, FIRST, RECIPE };
/* a recipe: the kernel; algorithms by segments; push constants before the places of operands, and behind; workgroups;
   bytes of each operand; a byte each, whether it is written; what it costs; and the last two fields of a command */
enum { BACKEND, BLOCK, ADDRESS, SHAPE_OF, DTYPE_OF, CONSTANT, NATIVE, SLOTS }; /* of a buffer */
static const char *const SLOT[SLOTS] = {"backend", "block", "address", "shape", "dtype", "constant", "_native"};

enum { PLACE, TABLE, SETTINGS, SLOWLY, WRITTEN, BUFFERS, BLOCKS, RECORD, COMMANDS, CONSTANTS, PREPARE, PARTS };
typedef struct {
    HEAD(PARTS); /* what it was given; PREPARE: NULL, if there is none */
    Py_ssize_t slot[SLOTS];
    int bits;
    void (*run)(const int64_t *);
} Launch;

enum { NAME, EVENTS, ARENA, ALLOC, STARTS, OF_BLOCK, INTO, ITEMSIZE, PUT, NUMPY_NAME, ATTRIBUTES };
static const char *const ATTRIBUTE[ATTRIBUTES] = {"name", "events",   "arena", "alloc",     "starts", "address",
                                                  "into", "itemsize", "put",   "numpy_name"};
static PyObject *attribute[ATTRIBUTES]; /* the same as Python's strings, for ever */

#define BUFFER(self) ((PyTypeObject *)(self)->part[BUFFERS])
#define FIELD(self, x, which) (*(PyObject **)((char *)(x) + (self)->slot[which]))

/* Whether it is a buffer of this device in a block of its own. */
static int ordinary(Launch *self, PyObject *x) {
    return (PyObject *)Py_TYPE(x) == self->part[BUFFERS] && FIELD(self, x, BACKEND) == self->part[PLACE] && FIELD(self, x, BLOCK) != NULL &&
           (PyObject *)Py_TYPE(FIELD(self, x, BLOCK)) == self->part[BLOCKS];
}

/* The entry that `prepare` makes for a call, a new reference; NULL, perhaps with an error, if there is none. */
static PyObject *prepared(Launch *self, PyObject *primitive, PyObject *key, PyObject *const *args, Py_ssize_t operands,
                          PyObject *kwnames) {
    PyObject *tensors = PyTuple_New(operands), *params = PyDict_New(), *found = NULL;
    const Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    int status = tensors == NULL || params == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < operands; i++)
        PyTuple_SET_ITEM(tensors, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; status == 0 && i < given; i++)
        if (ITEM(kwnames, i) != attribute[INTO])
            status = PyDict_SetItem(params, ITEM(kwnames, i), args[operands + i]);
    if (status == 0)
        found = PyObject_CallFunctionObjArgs(self->part[PREPARE], primitive, key, tensors, params, NULL);
    Py_XDECREF(tensors);
    Py_XDECREF(params);
    if (found == Py_None)
        Py_CLEAR(found);
    return found;
}

/* The entry of `ready` for a call, a new reference, and into what it puts its result, borrowed; NULL, perhaps with an
   error, where Python has to look. */
static PyObject *known(Launch *self, PyObject *primitive, PyObject *entry, PyObject *const *args, Py_ssize_t operands,
                       PyObject *kwnames, PyObject **into) {
    PyObject *ready = ITEM(entry, 0), *names = ITEM(entry, 1), *items[KEY];
    Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), wanted = PyTuple_GET_SIZE(names), count = 0;
    *into = NULL;
    for (Py_ssize_t i = 0; given > wanted && i < given; i++)
        if (ITEM(kwnames, i) == attribute[INTO])
            *into = args[operands + i];
    if (operands < 1 || operands > OPERANDS || given != wanted + (*into != NULL) || 2 * operands + given > KEY)
        return NULL;
    if (*into == Py_None)
        *into = NULL;
    for (Py_ssize_t i = 0; i < operands; i++) {
        PyObject *x = args[i];
        if (!ordinary(self, x))
            return NULL;
        items[count++] = FIELD(self, x, SHAPE_OF);
        items[count++] = FIELD(self, x, DTYPE_OF);
    }
    for (Py_ssize_t k = 0; k < wanted; k++) {
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
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(ready, key));
    if (found == NULL && self->part[PREPARE] != NULL && !PyErr_Occurred())
        found = prepared(self, primitive, key, args, operands, kwnames);
    Py_DECREF(key);
    if (found == NULL || found == Py_None ||
        (*into != NULL && (!ordinary(self, *into) || FIELD(self, *into, DTYPE_OF) != ITEM(found, DTYPE) ||
                           PyObject_RichCompareBool(FIELD(self, *into, SHAPE_OF), ITEM(found, SHAPE), Py_EQ) != 1)))
        Py_CLEAR(found);
    return found;
}

/* A buffer of memory that was just allocated; a new reference. */
static PyObject *made(Launch *self, PyObject *found) {
    PyObject *arena = PyObject_GetAttr(self->part[PLACE], attribute[ARENA]);
    if (arena == NULL)
        return NULL;
    PyObject *block = PyObject_CallMethodOneArg(arena, attribute[ALLOC], ITEM(found, NBYTES));
    Py_DECREF(arena);
    if (block == NULL)
        return NULL;
    PyObject *address = PyObject_GetAttr(block, attribute[OF_BLOCK]);
    PyObject *out = address == NULL ? NULL : BUFFER(self)->tp_alloc(BUFFER(self), 0);
    if (out == NULL) {
        Py_DECREF(block);
        Py_XDECREF(address);
        return NULL;
    }
    FIELD(self, out, BACKEND) = Py_NewRef(self->part[PLACE]);
    FIELD(self, out, BLOCK) = block;
    FIELD(self, out, ADDRESS) = address;
    FIELD(self, out, SHAPE_OF) = Py_NewRef(ITEM(found, SHAPE));
    FIELD(self, out, DTYPE_OF) = Py_NewRef(ITEM(found, DTYPE));
    FIELD(self, out, CONSTANT) = Py_NewRef(Py_None);
    FIELD(self, out, NATIVE) = Py_NewRef(Py_None);
    return out;
}

/* A buffer that something is put into, once that was noted; a new reference. */
static PyObject *noted(Launch *self, PyObject *into) {
    PyObject *said = PyObject_CallOneArg(self->part[WRITTEN], into);
    if (said == NULL)
        return NULL;
    Py_DECREF(said);
    return Py_NewRef(into);
}

/* Where a buffer lies in memory: the start of its segment, and its address there. 0: Python has to look. */
static int64_t pointer(Launch *self, PyObject *x, PyObject *starts) {
    uint64_t address = PyLong_AsUnsignedLongLong(FIELD(self, x, ADDRESS));
    uint64_t segment = address >> self->bits;
    if (segment >= (uint64_t)PyList_GET_SIZE(starts))
        return 0;
    return (int64_t)(address + PyLong_AsLongLong(PyList_GET_ITEM(starts, (Py_ssize_t)segment)));
}

/* Run the kernel; 1 if that was done, 0 if Python has to, -1 with an error. */
static int ran(Launch *self, PyObject *row, PyObject *out, PyObject *const *args, Py_ssize_t operands) {
    int64_t words[WORDS];
    Py_ssize_t size = PyBytes_GET_SIZE(row);
    PyObject *starts = PyObject_GetAttr(self->part[PLACE], attribute[STARTS]);
    int can = starts != NULL && PyList_CheckExact(starts) && size <= (Py_ssize_t)sizeof words;
    if (can) {
        memcpy(words, PyBytes_AS_STRING(row), (size_t)size);
        can = (words[HEAD] = pointer(self, out, starts)) != 0;
        for (Py_ssize_t i = 0; can && i < operands; i++)
            can = (words[HEAD + 1 + i] = pointer(self, args[i], starts)) != 0;
    }
    Py_XDECREF(starts);
    if (can && words[SHARED]) {
        PyObject *filled = PyBytes_FromStringAndSize((const char *)words, size);
        PyObject *said = filled == NULL ? NULL : PyObject_CallOneArg(self->part[RECORD], filled);
        Py_XDECREF(filled);
        Py_XDECREF(said);
        return said == NULL ? -1 : 1;
    }
    if (can)
        self->run(words);
    return can;
}

/* The ranges of the operands that are written, or of those that are not: a new list. */
static PyObject *ranges(PyObject *recipe, PyObject *const *starts, Py_ssize_t count, int written) {
    PyObject *found = PyList_New(0);
    const char *writes = PyBytes_AS_STRING(ITEM(recipe, WRITES));
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        if (writes[i] != written)
            continue;
        PyObject *end = PyNumber_Add(starts[i], ITEM(ITEM(recipe, ENDS), i));
        PyObject *range = end == NULL ? NULL : PyTuple_Pack(2, starts[i], end);
        if (range == NULL || PyList_Append(found, range) < 0)
            Py_CLEAR(found);
        Py_XDECREF(end);
        Py_XDECREF(range);
    }
    return found;
}

/* The command of a launch, and have it recorded: 1 if that was done, 0 if Python has to, -1 with an error. */
static int recorded(Launch *self, PyObject *row, PyObject *out, PyObject *const *args, Py_ssize_t operands) {
    PyObject *starts[OPERANDS + 1];
    uint32_t words[OPERANDS + 1];
    uint64_t all = 0;
    const Py_ssize_t count = operands + 1;
    PyObject *segments = PyTuple_New(count);
    if (segments == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        starts[i] = FIELD(self, i == 0 ? out : args[i - 1], ADDRESS);
        const uint64_t address = PyLong_AsUnsignedLongLong(starts[i]);
        PyObject *segment = PyLong_FromUnsignedLongLong(address >> self->bits);
        if (segment == NULL) {
            Py_DECREF(segments);
            return -1;
        }
        PyTuple_SET_ITEM(segments, i, segment);
        words[i] = (uint32_t)((address & ((UINT64_C(1) << self->bits) - 1)) >> 2);
        all |= address;
    }
    PyObject *recipe = ITEM(row, all % 16 == 0 ? 0 : 1);
    PyObject *algorithm = recipe == Py_None || PyBytes_GET_SIZE(ITEM(recipe, WRITES)) != count
                              ? NULL : PyDict_GetItemWithError(ITEM(recipe, ALGORITHMS), segments);
    Py_DECREF(segments);
    if (algorithm == NULL) /* nobody has bound it to these segments yet */
        return 0;
    const Py_ssize_t before = PyBytes_GET_SIZE(ITEM(recipe, BEFORE)), after = PyBytes_GET_SIZE(ITEM(recipe, AFTER));
    const Py_ssize_t places = count * (Py_ssize_t)sizeof *words;
    PyObject *push = PyBytes_FromStringAndSize(NULL, before + places + after);
    PyObject *reads = ranges(recipe, starts, count, 0), *writes = ranges(recipe, starts, count, 1);
    PyObject *command = ((PyTypeObject *)self->part[COMMANDS])->tp_alloc((PyTypeObject *)self->part[COMMANDS], 9);
    if (push == NULL || reads == NULL || writes == NULL || command == NULL) {
        Py_XDECREF(push);
        Py_XDECREF(reads);
        Py_XDECREF(writes);
        Py_XDECREF(command);
        return -1;
    }
    memcpy(PyBytes_AS_STRING(push), PyBytes_AS_STRING(ITEM(recipe, BEFORE)), (size_t)before);
    memcpy(PyBytes_AS_STRING(push) + before, words, (size_t)places);
    memcpy(PyBytes_AS_STRING(push) + before + places, PyBytes_AS_STRING(ITEM(recipe, AFTER)), (size_t)after);
    PyObject *fields[] = {Py_NewRef(ITEM(recipe, KERNEL)), Py_NewRef(algorithm), push, Py_NewRef(ITEM(recipe, GRID)),
                          reads, writes, Py_NewRef(ITEM(recipe, SECONDS)), Py_NewRef(ITEM(recipe, WHOLE)),
                          Py_NewRef(ITEM(recipe, FIRST))};
    for (Py_ssize_t i = 0; i < 9; i++)
        PyTuple_SET_ITEM(command, i, fields[i]);
    PyObject *said = PyObject_CallOneArg(self->part[RECORD], command);
    Py_DECREF(command);
    Py_XDECREF(said);
    return said == NULL ? -1 : 1;
}

/* Whether all is as it was when the table was begun. */
static int constant(Launch *self) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->part[CONSTANTS]); i++) {
        PyObject *each = ITEM(self->part[CONSTANTS], i), *value = PyObject_GetAttr(ITEM(each, 0), ITEM(each, 1));
        const int same = value == NULL ? 0 : PyObject_RichCompareBool(value, ITEM(each, 2), Py_EQ);
        Py_XDECREF(value);
        if (same != 1)
            return 0;
    }
    return 1;
}

static PyObject *call(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    entered |= IN_LAUNCH;
    Launch *self = (Launch *)me;
    Py_ssize_t operands = PyVectorcall_NARGS(nargsf) - 1;
    if (recording_of_thread() == NULL && operands > 0) {
        PyObject *events = PyObject_GetAttr(self->part[SETTINGS], attribute[EVENTS]);
        PyObject *name = events == Py_None && constant(self) ? PyObject_GetAttr(args[0], attribute[NAME]) : NULL;
        PyObject *entry = name == NULL ? NULL : PyDict_GetItemWithError(self->part[TABLE], name);
        PyObject *into, *found = entry == NULL ? NULL : known(self, args[0], entry, args + 1, operands, kwnames, &into);
        Py_XDECREF(events);
        Py_XDECREF(name);
        if (found == NULL && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
            return NULL; /* an interrupt */
        if (found != NULL) {
            PyObject *out = into == NULL ? made(self, found) : noted(self, into);
            int done = 0;
            if (out != NULL)
                done = (self->run == NULL ? recorded : ran)(self, ITEM(found, ROW), out, args + 1, operands);
            Py_DECREF(found);
            if (done > 0 || (out == NULL && PyErr_Occurred()))
                return out;
            Py_XDECREF(out);
            if (done < 0)
                return NULL;
        }
        PyErr_Clear(); /* of what is looked up again */
    }
    return PyObject_Vectorcall(self->part[SLOWLY], args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
}

/* ---------------------------------------------------------------------------------------------- programs */

enum { OF, RUN_SLOWLY, ROWS, RUN_PARTS }; /* a Launch; `Program.run`, in Python; all rows */
typedef struct {
    HEAD(RUN_PARTS);
    long long launches;
    void (*run)(const int64_t *, int64_t, int64_t);
} Run;

enum { MOST_BYTES = 1 << 16 }; /* of what is copied here; threads share more */

/* The bytes of a buffer; -1: Python has to look. */
static Py_ssize_t nbytes(Launch *of, PyObject *x) {
    PyObject *shape = FIELD(of, x, SHAPE_OF), *itemsize = PyObject_GetAttr(FIELD(of, x, DTYPE_OF), attribute[ITEMSIZE]);
    Py_ssize_t size = itemsize == NULL ? -1 : PyLong_AsSsize_t(itemsize);
    Py_XDECREF(itemsize);
    for (Py_ssize_t i = 0; size > 0 && i < PyTuple_GET_SIZE(shape); i++) {
        const Py_ssize_t n = PyLong_AsSsize_t(ITEM(shape, i));
        size = n < 0 || n > MOST_BYTES ? -1 : size * n;
        if (size > MOST_BYTES)
            return -1;
    }
    return size;
}

/* Whether an array, in one piece of memory, has the type and the shape of a buffer. */
static int alike(Launch *of, PyObject *target, const Py_buffer *array) {
    static const char *const KNOWN[][2] = {{"float32", "f"}, {"int32", "i"}, {"float64", "d"}};
    PyObject *shape = FIELD(of, target, SHAPE_OF), *name = PyObject_GetAttr(FIELD(of, target, DTYPE_OF),
                                                                            attribute[NUMPY_NAME]);
    int same = 0;
    for (size_t i = 0; name != NULL && !same && i < sizeof KNOWN / sizeof *KNOWN; i++)
        same = PyUnicode_CompareWithASCIIString(name, KNOWN[i][0]) == 0 && strcmp(array->format, KNOWN[i][1]) == 0;
    Py_XDECREF(name);
    same = same && array->ndim == PyTuple_GET_SIZE(shape);
    for (int i = 0; same && i < array->ndim; i++)
        same = PyLong_AsSsize_t(ITEM(shape, i)) == array->shape[i];
    return same;
}

/* Copy an array into a small buffer of its type and shape; whether that was possible. */
static int uploaded(Launch *of, PyObject *target, PyObject *array) {
    Py_buffer from;
    const Py_ssize_t size = ordinary(of, target) ? nbytes(of, target) : -1;
    if (size < 0 || PyObject_GetBuffer(array, &from, PyBUF_ND | PyBUF_FORMAT) < 0)
        return 0;
    PyObject *starts = alike(of, target, &from) ? PyObject_GetAttr(of->part[PLACE], attribute[STARTS]) : NULL;
    const int64_t to = starts != NULL && PyList_CheckExact(starts) ? pointer(of, target, starts) : 0;
    Py_XDECREF(starts);
    if (to)
        memmove((void *)(uintptr_t)to, from.buf, (size_t)size);
    PyBuffer_Release(&from);
    return to != 0;
}

/* Copy a buffer into one of the same type and shape, both in small memory of this device; whether that was possible. */
static int copied(Launch *of, PyObject *target, PyObject *value) {
    if (Py_TYPE(value) != BUFFER(of))
        return uploaded(of, target, value);
    if (!ordinary(of, target) || !ordinary(of, value) || FIELD(of, target, DTYPE_OF) != FIELD(of, value, DTYPE_OF) ||
        PyObject_RichCompareBool(FIELD(of, target, SHAPE_OF), FIELD(of, value, SHAPE_OF), Py_EQ) != 1)
        return 0;
    const Py_ssize_t size = nbytes(of, target);
    PyObject *starts = size < 0 ? NULL : PyObject_GetAttr(of->part[PLACE], attribute[STARTS]);
    int64_t to = 0, from = 0;
    if (starts != NULL && PyList_CheckExact(starts)) {
        to = pointer(of, target, starts);
        from = pointer(of, value, starts);
    }
    Py_XDECREF(starts);
    if (to && from)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, (size_t)size);
    return to && from;
}

/* Put values into their places, each in one of two ways; -1 with an error. */
static int filled(Run *self, PyObject *given) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(given); i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(given, i);
        if (PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2 && copied((Launch *)self->part[OF], ITEM(pair, 0), ITEM(pair, 1)))
            continue;
        PyErr_Clear();
        PyObject *one = PyTuple_Pack(1, pair);
        PyObject *said = one == NULL ? NULL : PyObject_CallMethodOneArg(((Launch *)self->part[OF])->part[PLACE], attribute[PUT], one);
        Py_XDECREF(one);
        Py_XDECREF(said);
        if (said == NULL)
            return -1;
    }
    return 0;
}

static PyObject *run_call(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    entered |= IN_LAUNCH;
    Run *self = (Run *)me;
    PyObject **of = ((Launch *)self->part[OF])->part;
    const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *events = PyObject_GetAttr(of[SETTINGS], attribute[EVENTS]);
    PyObject *starts = PyObject_GetAttr(of[PLACE], attribute[STARTS]); /* none: the device was closed */
    const int plain = events == Py_None && kwnames == NULL && starts != NULL && PyObject_IsTrue(starts) == 1 &&
                      (count == 0 || (count == 1 && (PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]))));
    Py_XDECREF(events);
    Py_XDECREF(starts);
    if (!plain) {
        PyErr_Clear();
        return PyObject_Vectorcall(self->part[RUN_SLOWLY], args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
    }
    if (count && filled(self, args[0]) < 0)
        return NULL;
    self->run((const int64_t *)PyBytes_AS_STRING(self->part[ROWS]), self->launches, 1);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------------------------------------- the types */

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[PARTS];
    unsigned long long address;
    int bits;
    p[PREPARE] = NULL;
    if (!PyArg_ParseTuple(args, "OO!OOOO!O!iKOO!O!|O:Launch", &p[PLACE], &PyDict_Type, &p[TABLE], &p[SETTINGS], &p[SLOWLY],
                          &p[WRITTEN], &PyType_Type, &p[BUFFERS], &PyType_Type, &p[BLOCKS], &bits, &address, &p[RECORD],
                          &PyType_Type, &p[COMMANDS], &PyTuple_Type, &p[CONSTANTS], &p[PREPARE]))
        return NULL;
    Launch *self = new_object(type, p, PARTS);
    if (self == NULL)
        return NULL;
    self->call = call;
    self->bits = bits;
    self->run = (void (*)(const int64_t *))(uintptr_t)address;
    if (find_slots(BUFFER(self), SLOT, self->slot, SLOTS) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Of a `Launch`, the method `run` of a program, all rows, how many, and the function that runs them. */
static PyObject *run_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[RUN_PARTS];
    unsigned long long address;
    long long launches;
    if (!PyArg_ParseTuple(args, "OOO!LK:Run", &p[OF], &p[RUN_SLOWLY], &PyBytes_Type, &p[ROWS], &launches, &address))
        return NULL;
    if (Py_TYPE(p[OF])->tp_new != make || ((Launch *)p[OF])->run == NULL)
        return PyErr_Format(PyExc_TypeError, "Run: a %.100s was given; a Launch of a CPU is required.",
                            Py_TYPE(p[OF])->tp_name);
    Run *self = new_object(type, p, RUN_PARTS);
    if (self == NULL)
        return NULL;
    self->call = run_call;
    self->launches = launches;
    self->run = (void (*)(const int64_t *, int64_t, int64_t))(uintptr_t)address;
    return (PyObject *)self;
}

int add_launch(PyObject *module) {
    if (intern(attribute, ATTRIBUTE, ATTRIBUTES) < 0 ||
        add_type(module, "ag.native._code.Launch", sizeof(Launch), make, NULL, NULL) < 0)
        return -1;
    return add_type(module, "ag.native._code.Run", sizeof(Run), run_make, NULL, NULL);
}
