/* The quick guard of a captured step: compares identities and strings of all that the step read, before each replay.

True: nothing has changed. False: something may have; guards.py then compares, and describes the change. It gets rows
of notes, once; the lists in a row stay those of the notes, which keep them up to date:

    slots       (descriptor, objects, values)          attributes of many tensors, such as requires_grad
    names       (place, names, ids, absent, absent, class)    globals of a module, or an object's own attributes;
                                                       `absent`: missing names, as a set and as a tuple; `class`: the
                                                       id of the object's class, or None
    single      (places, names, ids)                   closure cells, defaults of functions
    contents    (container, items)                     a list, or a dict: its keys, then its values */

#include "native.h"

static PyObject *referent; /* the name of what a weak reference refers to */
static const char *const REFERENT = "referent";

enum { UNSURE, SURE, FAILED = -1 }; /* what every comparison answers */

enum { SLOTS, NAMES, SINGLE, CONTENTS, KINDS }; /* of rows */

/* Behind the rows: a list, not empty once something is gone that a name meant, and ids say nothing; and what stands for
the meaning of a name that is nowhere. */
enum { GONE = KINDS, MISSING, PARTS };
typedef struct { HEAD(PARTS); } Unchanged;

/* ---------------------------------------------------------------------------------------------- slots */

/* A string is made anew when a model is asked for its parameters. */
static int is_same(PyObject *now, PyObject *then) {
    return now == then || (now != NULL && PyUnicode_CheckExact(now) && PyUnicode_CheckExact(then) &&
                           PyUnicode_Compare(now, then) == 0);
}

static int slots_hold(PyObject *row, PyObject *missing) {
    PyObject *descriptor = ITEM(row, 0), *objects = ITEM(row, 1), *values = ITEM(row, 2);
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    if (member->type != Py_T_OBJECT_EX || PyList_GET_SIZE(objects) != PyList_GET_SIZE(values))
        return UNSURE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        PyObject *x = PyList_GET_ITEM(objects, i);
        if (!PyObject_TypeCheck(x, ((PyDescrObject *)descriptor)->d_type) ||
            !is_same(*(PyObject **)((char *)x + member->offset), PyList_GET_ITEM(values, i)))
            return UNSURE;
    }
    return SURE;
}

/* ---------------------------------------------------------------------------------------------- names */

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
            own = PyDict_New();
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
                return found > 0 ? UNSURE : FAILED;
        }
        return SURE;
    }
    for (Py_ssize_t at = 0; PyDict_Next(own, &at, &name, &value);) {
        int found = PyUnicode_CheckExact(name) ? PySet_Contains(absent, name) : 1; /* 1: its hash may run any code */
        if (found)
            return found > 0 ? UNSURE : FAILED;
    }
    return SURE;
}

static int names_hold(PyObject *row, PyObject *missing) {
    PyObject *names = ITEM(row, 1), *ids = ITEM(row, 2), *own = names_of(ITEM(row, 0), ITEM(row, 5));
    if (own == NULL)
        return PyErr_Occurred() ? FAILED : UNSURE;
    int answer = PyList_GET_SIZE(names) == PyList_GET_SIZE(ids) ? SURE : UNSURE;
    for (Py_ssize_t i = 0; answer == SURE && i < PyList_GET_SIZE(names); i++) {
        PyObject *now = PyDict_GetItemWithError(own, PyList_GET_ITEM(names, i));
        if (now == NULL && PyErr_Occurred())
            answer = FAILED;
        else if (!is_noted(now == NULL ? missing : now, PyList_GET_ITEM(ids, i)))
            answer = UNSURE;
    }
    if (answer == SURE)
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
            return UNSURE;
        PyObject *place = held(PyList_GET_ITEM(places, i));
        PyObject *now = place == NULL ? NULL : meaning(place, PyList_GET_ITEM(names, i), missing);
        Py_XDECREF(place);
        if (now == NULL)
            return FAILED;
        int noted = is_noted(now, PyList_GET_ITEM(ids, i));
        Py_DECREF(now);
        if (!noted)
            return UNSURE;
    }
    return SURE;
}

/* ---------------------------------------------------------------------------------------------- contents */

static int dict_has(PyObject *container, PyObject *items) {
    Py_ssize_t count = PyDict_GET_SIZE(container), i = 0;
    if (PyList_GET_SIZE(items) != 2 * count)
        return UNSURE;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value); i++)
        if (key != PyList_GET_ITEM(items, i) || value != PyList_GET_ITEM(items, count + i))
            return UNSURE;
    return SURE;
}

static int list_has(PyObject *container, PyObject *items) {
    Py_ssize_t count = PyList_GET_SIZE(container);
    if (PyList_GET_SIZE(items) != count)
        return UNSURE;
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyList_GET_ITEM(container, i) != PyList_GET_ITEM(items, i))
            return UNSURE;
    return SURE;
}

static int contents_hold(PyObject *row, PyObject *missing) {
    PyObject *container = ITEM(row, 0), *items = ITEM(row, 1);
    return PyDict_CheckExact(container)   ? dict_has(container, items)
           : PyList_CheckExact(container) ? list_has(container, items)
                                          : UNSURE;
}

/* ---------------------------------------------------------------------------------------------- the type */

/* What tells whether a row holds, and what is in one, as `PyArg_ParseTuple` has it. */
static const struct {
    int (*holds)(PyObject *row, PyObject *missing);
    const char *format;
} KIND[KINDS] = {
    [SLOTS] = {slots_hold, "O!O!O!"},
    [NAMES] = {names_hold, "O!O!O!O!O!O!"},
    [SINGLE] = {single_holds, "O!O!O!"},
    [CONTENTS] = {contents_hold, "O!O!"},
};

static PyObject *call(PyObject *me, PyObject *args, PyObject *named) {
    entered |= IN_GUARDS;
    PyObject **part = ((Unchanged *)me)->part;
    int answer = PyList_GET_SIZE(part[GONE]) ? UNSURE : SURE;
    for (int kind = 0; kind < KINDS; kind++)
        for (Py_ssize_t i = 0; answer == SURE && i < PyTuple_GET_SIZE(part[kind]); i++)
            answer = KIND[kind].holds(ITEM(part[kind], i), part[MISSING]);
    return answer == FAILED ? NULL : PyBool_FromLong(answer);
}

/* The rows as a tuple, a new reference, if each is what is said of its kind. */
static PyObject *checked(PyObject *rows, int kind) {
    PyTypeObject *list = &PyList_Type, *any = &PyBaseObject_Type; /* no constants, where Python is another library */
    PyTypeObject *of[KINDS][6] = {[SLOTS] = {&PyMemberDescr_Type, list, list},
                                  [NAMES] = {any, list, list, &PyFrozenSet_Type, &PyTuple_Type, any},
                                  [SINGLE] = {list, list, list},
                                  [CONTENTS] = {any, list}};
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

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[PARTS], *self = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO!O:Unchanged", &p[SLOTS], &p[NAMES], &p[SINGLE], &p[CONTENTS], &PyList_Type, &p[GONE],
                          &p[MISSING]))
        return NULL;
    int kind = 0;
    while (kind < KINDS && (p[kind] = checked(p[kind], kind)) != NULL)
        kind++;
    if (kind == KINDS)
        self = new_object(type, p, PARTS);
    while (kind > 0)
        Py_DECREF(p[--kind]);
    return self;
}

int add_guards(PyObject *module) {
    return intern(&referent, &REFERENT, 1) < 0 ? -1 :
           add_type(module, "ag.native._code.Unchanged", sizeof(Unchanged), make, call, NULL);
}
