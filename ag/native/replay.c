/* A replay of a captured step in one call; the reference is `CapturedProgram.replay`, and capture.py around it.

A `Replay` gets the step's arguments as a tuple, and returns its result. It returns NotImplemented, without side
effects, if anything is unusual: other kinds of arguments, other settings or another thread; a change of what the step reads; a
call that is due to be compared; gradients or results that must be moved first. Python then handles the call. */

/* It is made of:

    thread      the only one that calls it; 0: any
    settings    (context variable, value): required values
    same        (object, name, value): required attributes
    kinds       of each argument: (type, slot, dtype, shape), of a tensor (type, slot, name, None)
    trusted     `calls` is counted here; at `due` a call is compared
    program     its `sharers` is a list of (block, sharers)
    holds       the quick guard, see guards.c
    guards      return a change in words, or None; so does `change`, which is given the quick guard's answer, and is
                None if that compares everything
    check       raises for values that are not allowed; None if all are
    grads       (tensors, gradients): the required `.grad` of each
    changed     blocks from before that replays write to, a frozenset: no argument may lie in one
    calls       called before the launches, and after them: two tuples
    run         runs the launches, given ((buffer, values), ...)
    results     makes the result of the arguments; None: it is None

No argument comes twice, and each is of exactly the type given. A tensor wants no gradient and has the name, and its
buffer has the device, dtype and shape of the slot, a buffer. An array has this dtype and shape; the slot is a buffer,
or a method that adds it to a list. */

#include "native.h"
#include <pythread.h>
#include <stdint.h>
#include <stdlib.h>

enum { SETTINGS, SAME, KINDS, TRUSTED, PROGRAM, HOLDS, GUARDS, CHANGE, CHECK, GRADS, CHANGED, BEFORE, AFTER, RUN, RESULTS,
       PARTS };

typedef struct {
    HEAD(PARTS);
    unsigned long thread;
    Py_ssize_t grad;
} Replay;

enum { BUFFER, REQUIRES_GRAD, GRAD, BLOCK, NAME, BACKEND, DTYPE, SHAPE, CALLS, DUE, SHARERS, ATTRIBUTES };
static const char *const ATTRIBUTE[ATTRIBUTES] = {"buffer", "requires_grad", "_grad", "block", "name",
                                                  "backend", "dtype", "shape", "calls", "due", "sharers"};
static PyObject *attribute[ATTRIBUTES]; /* the same as Python's strings, for ever */

enum { UNUSUAL, USUAL, FAILED = -1 }; /* what every question answers */


/* Whether an attribute is `wanted`, or equal to it where `equal`. */
static int has(PyObject *x, PyObject *name, PyObject *wanted, int equal) {
    PyObject *now = PyObject_GetAttr(x, name);
    if (now == NULL)
        return FAILED;
    const int answer = now == wanted ? USUAL : equal ? PyObject_RichCompareBool(now, wanted, Py_EQ) : UNUSUAL;
    Py_DECREF(now);
    return answer;
}

static int settings_hold(Replay *self) {
    PyObject *rows = self->part[SETTINGS], *now;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        if (PyContextVar_Get(ITEM(ITEM(rows, i), 0), Py_None, &now) < 0)
            return FAILED;
        PyObject *wanted = ITEM(ITEM(rows, i), 1);
        const int same = now == wanted || (now != NULL && PyUnicode_Check(now) && PyUnicode_Check(wanted) &&
                                           PyUnicode_Compare(now, wanted) == 0); /* names of devices */
        Py_XDECREF(now);
        if (!same)
            return UNUSUAL;
    }
    rows = self->part[SAME];
    int answer = USUAL;
    for (Py_ssize_t i = 0; answer == USUAL && i < PyTuple_GET_SIZE(rows); i++)
        answer = has(ITEM(ITEM(rows, i), 0), ITEM(ITEM(rows, i), 1), ITEM(ITEM(rows, i), 2), 1);
    return answer;
}

/* Put an array into the list of what is given. */
static int put(PyObject *slot, PyObject *array, PyObject *given) {
    PyObject *said = NULL;
    if (PyCallable_Check(slot)) {
        said = PyObject_CallFunctionObjArgs(slot, array, given, NULL);
    } else {
        PyObject *pair = PyTuple_Pack(2, slot, array);
        if (pair != NULL && PyList_Append(given, pair) == 0)
            said = Py_NewRef(Py_None);
        Py_XDECREF(pair);
    }
    Py_XDECREF(said);
    return said == NULL ? FAILED : USUAL;
}

/* Put an argument into the list of what is given, if it is of its kind. */
static int give(PyObject *x, PyObject *kind, PyObject *given, PyObject *changed) {
    PyObject *slot = ITEM(kind, 1);
    int answer = (PyObject *)Py_TYPE(x) == ITEM(kind, 0) ? USUAL : UNUSUAL;
    if (answer == USUAL && ITEM(kind, 3) != Py_None) { /* an array */
        answer = has(x, attribute[DTYPE], ITEM(kind, 2), 0);
        if (answer == USUAL)
            answer = has(x, attribute[SHAPE], ITEM(kind, 3), 1);
        return answer == USUAL ? put(slot, x, given) : answer;
    }
    if (answer == USUAL)
        answer = has(x, attribute[REQUIRES_GRAD], Py_False, 0);
    if (answer == USUAL)
        answer = has(x, attribute[NAME], ITEM(kind, 2), 1);
    if (answer == USUAL)
        answer = has(x, attribute[GRAD], Py_None, 0);
    PyObject *buffer = answer == USUAL ? PyObject_GetAttr(x, attribute[BUFFER]) : NULL;
    if (buffer == NULL)
        return answer == USUAL ? FAILED : answer;
    for (int i = 0; answer == USUAL && i < 3; i++) { /* its device, dtype and shape are those of the slot */
        PyObject *wanted = PyObject_GetAttr(slot, attribute[BACKEND + i]);
        answer = wanted == NULL ? FAILED : has(buffer, attribute[BACKEND + i], wanted, BACKEND + i == SHAPE);
        Py_XDECREF(wanted);
    }
    PyObject *block = answer == USUAL && PySet_GET_SIZE(changed) ? PyObject_GetAttr(buffer, attribute[BLOCK]) : NULL;
    if (block != NULL) {
        const int is_changed = PySet_Contains(changed, block);
        answer = is_changed < 0 ? FAILED : is_changed ? UNUSUAL : USUAL;
        Py_DECREF(block);
    }
    PyObject *pair = answer == USUAL ? PyTuple_Pack(2, slot, buffer) : NULL;
    if (answer == USUAL && (pair == NULL || PyList_Append(given, pair) < 0))
        answer = FAILED;
    Py_XDECREF(pair);
    Py_DECREF(buffer);
    return answer;
}

static int by_place(const void *a, const void *b) {
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* Whether no object comes twice; 0, perhaps with an error, otherwise. */
static int are_several(PyObject *args) {
    const Py_ssize_t count = PyTuple_GET_SIZE(args);
    Py_ssize_t i = 1;
    if (count <= 8) {
        for (; i < count; i++)
            for (Py_ssize_t j = 0; j < i; j++)
                if (ITEM(args, i) == ITEM(args, j))
                    return 0;
        return 1;
    }
    uintptr_t *place = PyMem_New(uintptr_t, count);
    if (place == NULL)
        return PyErr_NoMemory() != NULL;
    for (Py_ssize_t k = 0; k < count; k++)
        place[k] = (uintptr_t)ITEM(args, k);
    qsort(place, (size_t)count, sizeof *place, by_place);
    while (i < count && place[i] != place[i - 1])
        i++;
    PyMem_Free(place);
    return i >= count;
}

/* All arguments for the slots, a new list; NULL, perhaps with an error, if one is unusual. */
static PyObject *all_given(Replay *self, PyObject *args) {
    PyObject *kinds = self->part[KINDS];
    if (PyTuple_GET_SIZE(args) != PyTuple_GET_SIZE(kinds))
        return NULL;
    PyObject *given = PyList_New(0);
    if (given != NULL && !are_several(args)) /* one object twice is one slot of another program */
        Py_CLEAR(given);
    for (Py_ssize_t i = 0; given != NULL && i < PyTuple_GET_SIZE(args); i++)
        if (give(ITEM(args, i), ITEM(kinds, i), given, self->part[CHANGED]) != USUAL)
            Py_CLEAR(given);
    return given;
}

/* Whether something that was said is what is wanted; takes the reference. */
static int is(PyObject *said, PyObject *wanted) {
    const int answer = said == NULL ? FAILED : said == wanted ? USUAL : UNUSUAL;
    Py_XDECREF(said);
    return answer;
}

/* Whether all is as it was that the step has read. */
static int nothing_changed(Replay *self) {
    PyObject *guards = self->part[GUARDS];
    int answer = is(PyObject_CallNoArgs(self->part[HOLDS]), Py_True);
    for (Py_ssize_t i = 0; answer == USUAL && i < PyTuple_GET_SIZE(guards); i++)
        answer = is(PyObject_CallNoArgs(ITEM(guards, i)), Py_None);
    if (answer != USUAL || self->part[CHANGE] == Py_None)
        return answer;
    return is(PyObject_CallOneArg(self->part[CHANGE], Py_True), Py_None);
}

/* Whether every gradient is the one that was left, so that none has to be put back. */
static int grads_hold(Replay *self) {
    PyObject *tensors = ITEM(self->part[GRADS], 0), *grads = ITEM(self->part[GRADS], 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++)
        if (*(PyObject **)((char *)ITEM(tensors, i) + self->grad) != ITEM(grads, i))
            return UNUSUAL;
    return USUAL;
}

/* Whether nothing lies on the program's memory that was not there after the last replay. */
static int sharers_hold(Replay *self) {
    PyObject *rows = PyObject_GetAttr(self->part[PROGRAM], attribute[SHARERS]);
    if (rows == NULL || !PyList_CheckExact(rows)) {
        Py_XDECREF(rows);
        return rows == NULL ? FAILED : UNUSUAL;
    }
    int answer = USUAL;
    for (Py_ssize_t i = 0; answer == USUAL && i < PyList_GET_SIZE(rows); i++)
        answer = has(ITEM(PyList_GET_ITEM(rows, i), 0), attribute[SHARERS], ITEM(PyList_GET_ITEM(rows, i), 1), 0);
    Py_DECREF(rows);
    return answer;
}

/* The number of this call, a new reference; NULL, perhaps with an error, if it has to be compared. */
static PyObject *number_of(Replay *self) {
    PyObject *trusted = self->part[TRUSTED], *number = NULL;
    PyObject *calls = PyObject_GetAttr(trusted, attribute[CALLS]), *due = PyObject_GetAttr(trusted, attribute[DUE]);
    if (calls != NULL && due != NULL) {
        const long long now = PyLong_AsLongLong(calls) + 1, next = PyLong_AsLongLong(due);
        if (!PyErr_Occurred() && now < next)
            number = PyLong_FromLongLong(now);
    }
    Py_XDECREF(calls);
    Py_XDECREF(due);
    return number;
}

/* Call what takes nothing, one after the other. */
static int called(PyObject *callables) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(callables); i++) {
        PyObject *said = PyObject_CallNoArgs(ITEM(callables, i));
        Py_XDECREF(said);
        if (said == NULL)
            return FAILED;
    }
    return USUAL;
}

static PyObject *replayed(Replay *self, PyObject *args, PyObject *given) {
    PyObject *said = called(self->part[BEFORE]) == USUAL ? PyObject_CallOneArg(self->part[RUN], given) : NULL;
    Py_XDECREF(said);
    if (said == NULL || called(self->part[AFTER]) != USUAL)
        return NULL;
    if (self->part[RESULTS] == Py_None)
        Py_RETURN_NONE;
    return PyObject_CallOneArg(self->part[RESULTS], args);
}

static PyObject *call(PyObject *me, PyObject *tuple, PyObject *named) {
    entered |= IN_REPLAY;
    Replay *self = (Replay *)me;
    PyObject *args;
    if (!PyArg_ParseTuple(tuple, "O!:Replay", &PyTuple_Type, &args))
        return NULL;
    int answer = recording_of_thread() == NULL &&
                 (self->thread == 0 || self->thread == PyThread_get_thread_ident());
    if (answer == USUAL)
        answer = settings_hold(self);
    PyObject *number = answer == USUAL ? number_of(self) : NULL, *result = NULL;
    PyObject *given = number == NULL ? NULL : all_given(self, args);
    if (given == NULL)
        answer = PyErr_Occurred() ? FAILED : UNUSUAL;
    if (answer == USUAL)
        answer = nothing_changed(self);
    if (answer == USUAL && self->part[CHECK] != Py_None) {
        result = PyObject_CallOneArg(self->part[CHECK], args);
        answer = result != NULL ? USUAL : PyErr_ExceptionMatches(PyExc_Exception) ? UNUSUAL : FAILED;
        if (answer == UNUSUAL)
            PyErr_Clear();
        Py_CLEAR(result);
    }
    if (answer == USUAL)
        answer = grads_hold(self);
    if (answer == USUAL)
        answer = sharers_hold(self);
    /* The last question, as a call that Python looks at is counted there. */
    if (answer == USUAL && PyObject_SetAttr(self->part[TRUSTED], attribute[CALLS], number) < 0)
        answer = FAILED;
    if (answer == USUAL)
        result = replayed(self, args, given);
    else if (answer == UNUSUAL)
        result = Py_NewRef(Py_NotImplemented);
    Py_XDECREF(number);
    Py_XDECREF(given);
    return result;
}

/* ---------------------------------------------------------------------------------------------- the type */

/* Raise unless each of the rows is a tuple of so many items. */
static int rows_of(PyObject *rows, Py_ssize_t items) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++)
        if (!PyTuple_CheckExact(ITEM(rows, i)) || PyTuple_GET_SIZE(ITEM(rows, i)) != items) {
            PyErr_Format(PyExc_TypeError, "Replay: a row is %.100s; a tuple of %zd is required.",
                         Py_TYPE(ITEM(rows, i))->tp_name, items);
            return 0;
        }
    return 1;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[PARTS], *grad;
    PyTypeObject *const tuple = &PyTuple_Type;
    unsigned long thread;
    if (!PyArg_ParseTuple(args, "kO!O!O!OOOO!OOO!O!O!O!OOO!:Replay", &thread, tuple, &p[SETTINGS], tuple,
                          &p[SAME], tuple, &p[KINDS], &p[TRUSTED], &p[PROGRAM], &p[HOLDS], tuple,
                          &p[GUARDS], &p[CHANGE], &p[CHECK], tuple, &p[GRADS], &PyFrozenSet_Type, &p[CHANGED], tuple,
                          &p[BEFORE], tuple, &p[AFTER], &p[RUN], &p[RESULTS], &PyMemberDescr_Type, &grad))
        return NULL;
    if (!rows_of(p[SETTINGS], 2) || !rows_of(p[SAME], 3) || !rows_of(p[KINDS], 4) || PyTuple_GET_SIZE(p[GRADS]) != 2 ||
        !PyTuple_Check(ITEM(p[GRADS], 0)) || !PyTuple_Check(ITEM(p[GRADS], 1)) ||
        PyTuple_GET_SIZE(ITEM(p[GRADS], 0)) != PyTuple_GET_SIZE(ITEM(p[GRADS], 1)))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Replay: tensors and gradients do not match.");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ITEM(p[GRADS], 0)); i++)
        if (!PyObject_TypeCheck(ITEM(ITEM(p[GRADS], 0), i), ((PyDescrObject *)grad)->d_type))
            return PyErr_Format(PyExc_TypeError, "Replay: gradients are those of tensors.");
    Replay *self = new_object(type, p, PARTS);
    if (self == NULL)
        return NULL;
    self->thread = thread;
    self->grad = ((PyMemberDescrObject *)grad)->d_member->offset;
    return (PyObject *)self;
}

int add_replay(PyObject *module) {
    return intern(attribute, ATTRIBUTE, ATTRIBUTES) < 0 ? -1 :
           add_type(module, "ag.native._code.Replay", sizeof(Replay), make, call, NULL);
}
