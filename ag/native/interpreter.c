/* The interpreters of a thread, in two pointers: the innermost, and the one that records. The reference, and what each
function does, is ag/engine/interpreter.py. */

#include "native.h"

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
    entered |= IN_INTERPRETER;
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

static PyMethodDef methods[] = {{"current", current, METH_NOARGS, "Return the innermost interpreter, or None."},
                                {"recording_here", recording_here, METH_NOARGS, "Return the one that records, or None."},
                                {"enter", enter, METH_O, "Enter an interpreter."},
                                {"leave", leave, METH_O, "Leave an interpreter, and all inside it."},
                                {NULL, NULL, 0, NULL}};

int add_interpreter(PyObject *module) {
    return intern(attribute, ATTRIBUTE, 2) < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
