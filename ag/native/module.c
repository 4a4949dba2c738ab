/* The extension module `ag.native._code`: the types and functions of all files of this folder. */

#include "native.h"

void *new_object(PyTypeObject *type, PyObject *const *part, Py_ssize_t count) {
    Any *self = (Any *)type->tp_alloc(type, 0);
    for (Py_ssize_t i = 0; self != NULL && i < count; i++)
        self->part[i] = Py_XNewRef(part[i]);
    if (self != NULL)
        self->parts = count;
    return self;
}

static int traverse(PyObject *me, visitproc visit, void *arg) {
    Any *self = (Any *)me;
    Py_VISIT(Py_TYPE(me));
    for (Py_ssize_t i = 0; i < self->parts; i++)
        Py_VISIT(self->part[i]);
    return 0;
}

static int clear(PyObject *me) {
    Any *self = (Any *)me;
    for (Py_ssize_t i = 0; i < self->parts; i++)
        Py_CLEAR(self->part[i]);
    return 0;
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

int add_type(PyObject *module, const char *name, size_t size, newfunc make, ternaryfunc call, PyMethodDef *methods) {
    static PyMethodDef none[] = {{NULL, NULL, 0, NULL}};
    PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Any, call), READONLY, NULL}, {NULL}};
    if (call != NULL)
        members[0] = members[1];
    PyType_Slot slots[] = {{Py_tp_new, make}, {Py_tp_dealloc, dealloc}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
                           {Py_tp_members, members}, {Py_tp_methods, methods == NULL ? none : methods},
                           {Py_tp_call, call == NULL ? PyVectorcall_Call : call}, {0, NULL}};
    const unsigned long vector = call == NULL ? Py_TPFLAGS_HAVE_VECTORCALL : 0;
    PyType_Spec spec = {name, (int)size, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | (unsigned)vector, slots};
    PyObject *type = PyType_FromSpec(&spec);
    const int status = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return status;
}

int intern(PyObject **strings, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if ((strings[i] = PyUnicode_InternFromString(names[i])) == NULL)
            return -1;
    return 0;
}

int find_slots(PyTypeObject *type, const char *const *names, Py_ssize_t *offsets, int count) {
    for (int i = 0; i < count; i++) {
        PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, names[i]);
        if (descriptor == NULL)
            return -1;
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type)
            PyErr_Format(PyExc_TypeError, "%s is no slot of %.100s.", names[i], type->tp_name);
        else
            offsets[i] = ((PyMemberDescrObject *)descriptor)->d_member->offset;
        Py_DECREF(descriptor);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

unsigned entered;

static PyObject *entered_since(PyObject *module, PyObject *none) {
    static const char *const NAME[] = {"arena", "launch", "op", "replay", "rows"};
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < (int)(sizeof NAME / sizeof *NAME); i++) {
        PyObject *name = entered >> i & 1 ? PyUnicode_FromString(NAME[i]) : NULL;
        if (entered >> i & 1 && (name == NULL || PyList_Append(names, name) < 0))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    entered = 0;
    (void)module, (void)none;
    return names;
}

static PyMethodDef methods[] = {
    {"entered", entered_since, METH_NOARGS, "Return the files called since this was asked last, without suffix."},
    {NULL, NULL, 0, NULL}};

static int execute(PyObject *module) {
    if (PyModule_AddFunctions(module, methods) < 0)
        return -1;
    int (*const parts[])(PyObject *) = {add_arena, add_launch, add_op, add_replay, add_rows};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i](module) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_code", .m_slots = slots};

PyMODINIT_FUNC PyInit__code(void) { return PyModuleDef_Init(&definition); }
