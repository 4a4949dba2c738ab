/* What the call of an op asks first, without running Python: the interpreters of its thread, in two pointers, the
innermost and the one that records (ag/engine/interpreter.py); and its operands (ag/autograd/operands.py).

    Operands(tensor, buffer, ids)   once, of the classes of tensors and buffers, and the counter of tensors
    alike(args, n)                  (device, dtype, buffers, operands, other arguments) if the first n arguments, and
                                    no others, are tensors of one device and type; else None
    tensor(buffer)                  Tensor(buffer)
    tensor(buffer, node)            Tensor(buffer, True, node) */

#include "native.h"

/* ---------------------------------------------------------------------------------------------- interpreters */

#ifdef _MSC_VER
#define LOCAL __declspec(thread)
#else
#define LOCAL __thread
#endif

static LOCAL PyObject *innermost, *recording; /* NULL: none; the chain of the first holds the second */
static PyObject *attribute[2];
static const char *const ATTRIBUTE[] = {"outer", "records"};
enum { OUTER, RECORDS };

PyObject *recording_of_thread(void) { return recording; }

static PyObject *current(PyObject *module, PyObject *none) {
    entered |= IN_OP;
    (void)module, (void)none;
    return Py_NewRef(innermost == NULL ? Py_None : innermost);
}

static PyObject *recording_here(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return Py_NewRef(recording == NULL ? Py_None : recording);
}

static int records(PyObject *interpreter) {
    PyObject *said = PyObject_GetAttr(interpreter, attribute[RECORDS]);
    const int answer = said == NULL ? -1 : PyObject_IsTrue(said);
    Py_XDECREF(said);
    return answer;
}

static PyObject *enter(PyObject *module, PyObject *interpreter) {
    const int new = records(interpreter);
    if (new < 0 || PyObject_SetAttr(interpreter, attribute[OUTER], innermost == NULL ? Py_None : innermost) < 0)
        return NULL;
    PyObject *before = innermost;
    innermost = Py_NewRef(interpreter);
    Py_XDECREF(before); /* `outer` holds it */
    if (new)
        recording = interpreter;
    (void)module;
    Py_RETURN_NONE;
}

/* The interpreter around another, borrowed, as that one holds it; NULL if there is none, with an error if asking fails. */
static PyObject *around(PyObject *interpreter) {
    PyObject *outer = PyObject_GetAttr(interpreter, attribute[OUTER]);
    Py_XDECREF(outer);
    return outer == Py_None ? NULL : outer;
}

static PyObject *leave(PyObject *module, PyObject *interpreter) {
    PyObject *found = innermost;
    while (found != NULL && found != interpreter)
        found = around(found);
    PyObject *outer = found == NULL ? NULL : around(interpreter), *next = outer;
    while (next != NULL && !PyErr_Occurred() && records(next) == 0)
        next = around(next);
    if (PyErr_Occurred())
        return NULL;
    if (found != NULL) {
        PyObject *before = innermost;
        innermost = Py_XNewRef(outer);
        recording = next;
        const int status = PyObject_SetAttr(interpreter, attribute[OUTER], Py_None);
        Py_DECREF(before);
        if (status < 0)
            return NULL;
    }
    (void)module;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"current", current, METH_NOARGS, "Return the innermost interpreter, or None."},
                                {"recording_here", recording_here, METH_NOARGS, "Return the one that records, or None."},
                                {"enter", enter, METH_O, "Enter an interpreter."},
                                {"leave", leave, METH_O, "Leave an interpreter, and all inside it."},
                                {NULL, NULL, 0, NULL}};

/* ---------------------------------------------------------------------------------------------- operands */

enum { BACKEND, DTYPE, OF_BUFFER };
static const char *const BUFFER_SLOT[OF_BUFFER] = {"backend", "dtype"};
enum { ID, BUFFER, REQUIRES_GRAD, NODE, GRAD, NAME, OF_TENSOR };
static const char *const TENSOR_SLOT[OF_TENSOR] = {"id", "buffer", "requires_grad", "node", "_grad", "name"};

enum { TENSORS, BUFFERS, IDS, PARTS }; /* what it was given */
typedef struct {
    HEAD(PARTS);
    Py_ssize_t of_tensor[OF_TENSOR], of_buffer[OF_BUFFER];
} Operands;

static PyObject **slot(PyObject *x, Py_ssize_t offset) { return (PyObject **)((char *)x + offset); }

/* The buffer of a tensor, borrowed; NULL without an error if it is no tensor, or has no whole buffer. */
static PyObject *buffer_of(Operands *self, PyObject *x) {
    PyObject *b = (PyObject *)Py_TYPE(x) == self->part[TENSORS] ? *slot(x, self->of_tensor[BUFFER]) : NULL;
    return b != NULL && (PyObject *)Py_TYPE(b) == self->part[BUFFERS] && *slot(b, self->of_buffer[BACKEND]) != NULL &&
           *slot(b, self->of_buffer[DTYPE]) != NULL ? b : NULL;
}

static PyObject *alike(PyObject *me, PyObject *const *given, Py_ssize_t count) {
    entered |= IN_OP;
    Operands *self = (Operands *)me;
    const Py_ssize_t operands = count == 2 ? PyLong_AsSsize_t(given[1]) : -1;
    if (operands < 0 || !PyTuple_CheckExact(given[0])) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "alike: a tuple and a number of operands are required.");
        return NULL;
    }
    PyObject *args = given[0], *backend = NULL, *dtype = NULL;
    const Py_ssize_t all = PyTuple_GET_SIZE(args);
    if (operands == 0 || operands > all)
        return Py_NewRef(Py_None);
    for (Py_ssize_t i = operands; i < all; i++)
        if ((PyObject *)Py_TYPE(PyTuple_GET_ITEM(args, i)) == self->part[TENSORS])
            return Py_NewRef(Py_None);
    PyObject *buffers = PyList_New(operands);
    for (Py_ssize_t i = 0; buffers != NULL && i < operands; i++) {
        PyObject *b = buffer_of(self, PyTuple_GET_ITEM(args, i));
        if (b != NULL && i == 0) {
            backend = *slot(b, self->of_buffer[BACKEND]);
            dtype = *slot(b, self->of_buffer[DTYPE]);
        }
        if (b == NULL || *slot(b, self->of_buffer[BACKEND]) != backend || *slot(b, self->of_buffer[DTYPE]) != dtype) {
            Py_DECREF(buffers);
            return Py_NewRef(Py_None);
        }
        PyList_SET_ITEM(buffers, i, Py_NewRef(b));
    }
    PyObject *tensors = buffers == NULL ? NULL : PyTuple_GetSlice(args, 0, operands);
    PyObject *others = tensors == NULL ? NULL : PyTuple_GetSlice(args, operands, all);
    PyObject *found = others == NULL ? NULL : PyTuple_Pack(5, backend, dtype, buffers, tensors, others);
    Py_XDECREF(buffers);
    Py_XDECREF(tensors);
    Py_XDECREF(others);
    return found;
}

static PyObject *tensor(PyObject *me, PyObject *const *given, Py_ssize_t count) {
    Operands *self = (Operands *)me;
    if (count < 1 || count > 2 || (PyObject *)Py_TYPE(given[0]) != self->part[BUFFERS])
        return PyObject_Vectorcall(self->part[TENSORS], given, (size_t)count, NULL); /* which says what is wrong */
    PyTypeObject *kind = (PyTypeObject *)self->part[TENSORS];
    PyObject *id = PyIter_Next(self->part[IDS]), *made = id == NULL ? NULL : kind->tp_alloc(kind, 0);
    if (made == NULL) {
        Py_XDECREF(id);
        return NULL;
    }
    *slot(made, self->of_tensor[ID]) = id;
    *slot(made, self->of_tensor[BUFFER]) = Py_NewRef(given[0]);
    *slot(made, self->of_tensor[REQUIRES_GRAD]) = Py_NewRef(count == 2 ? Py_True : Py_False);
    *slot(made, self->of_tensor[NODE]) = Py_NewRef(count == 2 ? given[1] : Py_None);
    *slot(made, self->of_tensor[GRAD]) = Py_NewRef(Py_None);
    *slot(made, self->of_tensor[NAME]) = Py_NewRef(Py_None);
    return made;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[PARTS];
    if (!PyArg_ParseTuple(args, "O!O!O:Operands", &PyType_Type, &p[TENSORS], &PyType_Type, &p[BUFFERS], &p[IDS]))
        return NULL;
    if (!PyIter_Check(p[IDS]))
        return PyErr_Format(PyExc_TypeError, "Operands: a %.100s was given; what counts is required.",
                            Py_TYPE(p[IDS])->tp_name);
    Operands *self = new_object(type, p, PARTS);
    if (self != NULL && (find_slots((PyTypeObject *)p[TENSORS], TENSOR_SLOT, self->of_tensor, OF_TENSOR) < 0 ||
                         find_slots((PyTypeObject *)p[BUFFERS], BUFFER_SLOT, self->of_buffer, OF_BUFFER) < 0))
        Py_CLEAR(self);
    (void)named;
    return (PyObject *)self;
}

static PyMethodDef methods[] = {{"alike", (PyCFunction)(void (*)(void))alike, METH_FASTCALL, "See the head of op.c."},
                                {"tensor", (PyCFunction)(void (*)(void))tensor, METH_FASTCALL, "See the head of op.c."},
                                {NULL, NULL, 0, NULL}};
int add_op(PyObject *module) {
    if (intern(attribute, ATTRIBUTE, 2) < 0 || PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return add_type(module, "ag.native._code.Operands", sizeof(Operands), make, NULL, methods);
}
