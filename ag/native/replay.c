/* A replay of a captured step in one call, and the quick guard that it asks first; the references are
`CapturedProgram.replay` with capture/step.py around it, and capture/guards.py. */

#include "native.h"
#include <pythread.h>
#include <stdint.h>
#include <stdlib.h>

enum { UNUSUAL, USUAL, FAILED = -1 }; /* what every question answers */

/* ---------------------------------------------------------------------------------------------- the guard */

/* `Unchanged` compares identities and strings of all that the step read, before each replay.

True: nothing has changed. False: something may have; guards.py then compares, and describes the change. It gets rows
of notes, once; the lists in a row stay those of the notes, which keep them up to date:

    slots       (descriptor, objects, values)          attributes of many tensors, such as requires_grad
    names       (place, names, ids, absent, absent, class)    globals of a module, or an object's own attributes;
                                                       `absent`: missing names, as a set and as a tuple; `class`: the
                                                       id of the object's class, or None
    single      (places, names, ids)                   closure cells, defaults of functions
    contents    (container, items)                     a list, or a dict: its keys, then its values */

static PyObject *referent; /* the name of what a weak reference refers to */
static const char *const REFERENT = "referent";

enum { SLOT_ROWS, NAME_ROWS, SINGLE_ROWS, CONTENT_ROWS, ROW_KINDS }; /* of rows */

/* Behind the rows: a list, not empty once something is gone that a name meant, and ids say nothing; and what stands for
the meaning of a name that is nowhere. */
enum { GONE = ROW_KINDS, MISSING, GUARD_PARTS };
typedef struct { HEAD(GUARD_PARTS); } Unchanged;

/* A string is made anew when a model is asked for its parameters. */
static int is_same(PyObject *now, PyObject *then) {
    return now == then || (now != NULL && PyUnicode_CheckExact(now) && PyUnicode_CheckExact(then) &&
                           PyUnicode_Compare(now, then) == 0);
}

static int slots_hold(PyObject *row, PyObject *missing) {
    PyObject *descriptor = ITEM(row, 0), *objects = ITEM(row, 1), *values = ITEM(row, 2);
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    if (member->type != Py_T_OBJECT_EX || PyList_GET_SIZE(objects) != PyList_GET_SIZE(values))
        return UNUSUAL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        PyObject *x = PyList_GET_ITEM(objects, i);
        if (!PyObject_TypeCheck(x, ((PyDescrObject *)descriptor)->d_type) ||
            !is_same(*(PyObject **)((char *)x + member->offset), PyList_GET_ITEM(values, i)))
            return UNUSUAL;
    }
    return USUAL;
}

/* What a weak reference refers to, and anything else itself; a new reference. */
static PyObject *held(PyObject *x) {
    PyObject *found;
    if (!PyWeakref_CheckRefExact(x))
        return Py_NewRef(x);
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(x, &found) == 0)
        found = Py_NewRef(Py_None);
#else
    found = Py_NewRef(PyWeakref_GetObject(x));
#endif
    return found;
}

/* The dict in which the names of a place stand, a new reference: an empty one where it has none, as an object with
slots, or is gone; NULL where that is no dict, or the owner not of this class, perhaps with an error. */
static PyObject *names_of(PyObject *place, PyObject *class) {
    if (PyDict_Check(place))
        return Py_NewRef(place);
    PyObject *owner = held(place), *own = NULL;
    if (class != Py_None && (PyObject *)Py_TYPE(owner) != PyLong_AsVoidPtr(class)) {
        Py_DECREF(owner);
        return NULL;
    }
    if (owner != NULL && PyType_Check(owner)) {
#if PY_VERSION_HEX >= 0x030C0000
        own = PyType_GetDict((PyTypeObject *)owner);
#else
        own = Py_XNewRef(((PyTypeObject *)owner)->tp_dict);
#endif
    } else if (owner != NULL) {
        own = PyObject_GenericGetDict(owner, NULL);
        if (own == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            if (Py_TYPE(owner)->tp_getattro == PyObject_GenericGetAttr)
                own = PyDict_New(); /* else it may be computed, as of `threading.local` */
        }
    }
    Py_XDECREF(owner);
    if (own != NULL && !PyDict_Check(own))
        Py_CLEAR(own);
    return own;
}

/* Whether two objects are one, as `id` tells. */
static int is_noted(PyObject *now, PyObject *id) { return now == PyLong_AsVoidPtr(id); }

/* Whether a dict has none of some names, going through the smaller of both. */
static int has_none(PyObject *own, PyObject *absent, PyObject *listed) {
    PyObject *name, *value;
    if (PyTuple_GET_SIZE(listed) <= PyDict_GET_SIZE(own)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(listed); i++) {
            int found = PyDict_Contains(own, ITEM(listed, i));
            if (found)
                return found > 0 ? UNUSUAL : FAILED;
        }
        return USUAL;
    }
    for (Py_ssize_t at = 0; PyDict_Next(own, &at, &name, &value);) {
        int found = PyUnicode_CheckExact(name) ? PySet_Contains(absent, name) : 1; /* 1: its hash may run any code */
        if (found)
            return found > 0 ? UNUSUAL : FAILED;
    }
    return USUAL;
}

static int names_hold(PyObject *row, PyObject *missing) {
    PyObject *names = ITEM(row, 1), *ids = ITEM(row, 2), *own = names_of(ITEM(row, 0), ITEM(row, 5));
    if (own == NULL)
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    int answer = PyList_GET_SIZE(names) == PyList_GET_SIZE(ids) ? USUAL : UNUSUAL;
    for (Py_ssize_t i = 0; answer == USUAL && i < PyList_GET_SIZE(names); i++) {
        PyObject *now = PyDict_GetItemWithError(own, PyList_GET_ITEM(names, i));
        if (now == NULL && PyErr_Occurred())
            answer = FAILED;
        else if (!is_noted(now == NULL ? missing : now, PyList_GET_ITEM(ids, i)))
            answer = UNUSUAL;
    }
    if (answer == USUAL)
        answer = has_none(own, ITEM(row, 3), ITEM(row, 4));
    Py_DECREF(own);
    return answer;
}

/* What a name means that is no global and no own attribute, a new reference; NULL with an error if that fails. */
static PyObject *meaning(PyObject *place, PyObject *name, PyObject *missing) {
    PyObject *now;
    if (name == referent)
        return Py_NewRef(place == Py_None ? missing : place);
    if (PyCell_Check(place)) {
        now = PyCell_GET(place);
        return Py_NewRef(now == NULL ? missing : now);
    }
    if (PyContextVar_CheckExact(place))
        return PyContextVar_Get(place, missing, &now) < 0 ? NULL : now;
    now = PyObject_GetAttr(place, name);
    if (now == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        return Py_NewRef(missing);
    }
    return now;
}

static int single_holds(PyObject *row, PyObject *missing) {
    PyObject *places = ITEM(row, 0), *names = ITEM(row, 1), *ids = ITEM(row, 2);
    Py_ssize_t count = PyList_GET_SIZE(places);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GET_SIZE(places) != count || PyList_GET_SIZE(names) != count || PyList_GET_SIZE(ids) != count)
            return UNUSUAL;
        PyObject *place = held(PyList_GET_ITEM(places, i));
        PyObject *now = place == NULL ? NULL : meaning(place, PyList_GET_ITEM(names, i), missing);
        Py_XDECREF(place);
        if (now == NULL)
            return FAILED;
        int noted = is_noted(now, PyList_GET_ITEM(ids, i));
        Py_DECREF(now);
        if (!noted)
            return UNUSUAL;
    }
    return USUAL;
}

static int dict_has(PyObject *container, PyObject *items) {
    Py_ssize_t count = PyDict_GET_SIZE(container), i = 0;
    if (PyList_GET_SIZE(items) != 2 * count)
        return UNUSUAL;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value); i++)
        if (key != PyList_GET_ITEM(items, i) || value != PyList_GET_ITEM(items, count + i))
            return UNUSUAL;
    return USUAL;
}

static int list_has(PyObject *container, PyObject *items) {
    Py_ssize_t count = PyList_GET_SIZE(container);
    if (PyList_GET_SIZE(items) != count)
        return UNUSUAL;
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyList_GET_ITEM(container, i) != PyList_GET_ITEM(items, i))
            return UNUSUAL;
    return USUAL;
}

static int contents_hold(PyObject *row, PyObject *missing) {
    PyObject *container = ITEM(row, 0), *items = ITEM(row, 1);
    return PyDict_CheckExact(container)   ? dict_has(container, items)
           : PyList_CheckExact(container) ? list_has(container, items)
                                          : UNUSUAL;
}

/* What tells whether a row holds, and what is in one, as `PyArg_ParseTuple` has it. */
static const struct {
    int (*hold)(PyObject *row, PyObject *missing);
    const char *format;
} KIND[ROW_KINDS] = {
    [SLOT_ROWS] = {slots_hold, "O!O!O!"},
    [NAME_ROWS] = {names_hold, "O!O!O!O!O!O!"},
    [SINGLE_ROWS] = {single_holds, "O!O!O!"},
    [CONTENT_ROWS] = {contents_hold, "O!O!"},
};

static PyObject *holds(PyObject *me, PyObject *args, PyObject *named) {
    entered |= IN_REPLAY;
    PyObject **part = ((Unchanged *)me)->part;
    int answer = PyList_GET_SIZE(part[GONE]) ? UNUSUAL : USUAL;
    for (int kind = 0; kind < ROW_KINDS; kind++)
        for (Py_ssize_t i = 0; answer == USUAL && i < PyTuple_GET_SIZE(part[kind]); i++)
            answer = KIND[kind].hold(ITEM(part[kind], i), part[MISSING]);
    return answer == FAILED ? NULL : PyBool_FromLong(answer);
}

/* The rows as a tuple, a new reference, if each is what is said of its kind. */
static PyObject *checked(PyObject *rows, int kind) {
    PyTypeObject *list = &PyList_Type, *any = &PyBaseObject_Type; /* no constants, where Python is another library */
    PyTypeObject *of[ROW_KINDS][6] = {[SLOT_ROWS] = {&PyMemberDescr_Type, list, list},
                                  [NAME_ROWS] = {any, list, list, &PyFrozenSet_Type, &PyTuple_Type, any},
                                  [SINGLE_ROWS] = {list, list, list},
                                  [CONTENT_ROWS] = {any, list}};
    PyTypeObject **types = of[kind];
    PyObject *x[6], *found = PySequence_Tuple(rows);
    for (Py_ssize_t i = 0; found != NULL && i < PyTuple_GET_SIZE(found); i++) {
        PyObject *row = ITEM(found, i);
        if (!PyTuple_Check(row))
            PyErr_Format(PyExc_TypeError, "Unchanged: a row is a %.100s; a tuple is required.", Py_TYPE(row)->tp_name);
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, KIND[kind].format, types[0], &x[0], types[1], &x[1],
                                                     types[2], &x[2], types[3], &x[3], types[4], &x[4], types[5], &x[5]))
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *make_guard(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[GUARD_PARTS], *self = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO!O:Unchanged", &p[SLOT_ROWS], &p[NAME_ROWS], &p[SINGLE_ROWS], &p[CONTENT_ROWS],
                          &PyList_Type, &p[GONE], &p[MISSING]))
        return NULL;
    int kind = 0;
    while (kind < ROW_KINDS && (p[kind] = checked(p[kind], kind)) != NULL)
        kind++;
    if (kind == ROW_KINDS)
        self = new_object(type, p, GUARD_PARTS);
    while (kind > 0)
        Py_DECREF(p[--kind]);
    return self;
}

/* ---------------------------------------------------------------------------------------------- the replay */

/* A `Replay` gets the step's arguments as a tuple, and returns its result. It returns NotImplemented, without side
effects, if anything is unusual: other kinds of arguments, other settings or another thread; a change of what the step reads; a
call that is due to be compared; gradients or results that must be moved first. Python then handles the call. */

/* It is made of:

    thread      the only one that calls it; 0: any
    settings    (context variable, value): required values
    same        (object, name, value): required attributes
    kinds       of each argument: (type, slot, dtype, shape), of a tensor (type, slot, name, None)
    trusted     `calls` is counted here; at `due` a call is compared
    program     its `sharers` is a list of (block, sharers)
    holds       a quick guard, see above
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
    if (intern(&referent, &REFERENT, 1) < 0 || intern(attribute, ATTRIBUTE, ATTRIBUTES) < 0 ||
        add_type(module, "ag.native._code.Unchanged", sizeof(Unchanged), make_guard, holds, NULL) < 0)
        return -1;
    return add_type(module, "ag.native._code.Replay", sizeof(Replay), make, call, NULL);
}
