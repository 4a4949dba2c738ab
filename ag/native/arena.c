/* `Arena.alloc` where a block of the same size has died, in one call of compiled code; anything else falls back to Python.

    Alloc(arena, block, slowly, no_sharers, now, dead, died, loans, align)    made once, called as `alloc(nbytes)`

Creating objects can run arbitrary Python (garbage collection), which may allocate. So register the block before
returning it, and check again that the bins were not replaced. The arena is held weakly, as it holds this. */

#include "native.h"

enum { ADDRESS, NBYTES, SHARERS, MADE, CHANGES, SLOTS };
static const char *const SLOT[SLOTS] = {"address", "nbytes", "sharers", "made", "changes"};
enum { BINS, LIVE, PEAK, PINNED, POPLEFT, APPENDLEFT, NAMES };
static const char *const NAME[NAMES] = {"_bins", "_live", "_peak", "pinned", "popleft", "appendleft"};
static PyObject *name[NAMES]; /* the same as Python's strings, for ever */

enum { OF_ARENA, BLOCK, SLOWLY, NO_SHARERS, NOW, DEAD, DIED, LOANS, PARTS }; /* what it was given */
typedef struct {
    HEAD(PARTS);
    Py_ssize_t slot[SLOTS], align;
} Alloc;

#define FIELD(self, x, which) (*(PyObject **)((char *)(x) + (self)->slot[which]))

/* What a weak reference refers to, a new reference; NULL if that is gone. */
static PyObject *referred(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    PyWeakref_GetRef(reference, &found);
    return found;
#else
    PyObject *found = PyWeakref_GetObject(reference);
    return found == Py_None ? NULL : Py_NewRef(found);
#endif
}

/* Let a number of the arena's be another; -1 with an error. */
static int set(PyObject *arena, PyObject *which, Py_ssize_t value) {
    PyObject *number = PyLong_FromSsize_t(value);
    const int status = number == NULL ? -1 : PyObject_SetAttr(arena, which, number);
    Py_XDECREF(number);
    return status;
}

/* Take away from a number of the arena's, or add to it; the new one, or -1 with an error. */
static Py_ssize_t moved(PyObject *arena, PyObject *which, Py_ssize_t by) {
    PyObject *old = PyObject_GetAttr(arena, which);
    Py_ssize_t value = old == NULL ? -1 : PyLong_AsSsize_t(old) + by;
    Py_XDECREF(old);
    if (PyErr_Occurred())
        return -1;
    return set(arena, which, value) < 0 ? -1 : value;
}

/* The bin for blocks of a size, borrowed, made where there is none; NULL with an error. */
static PyObject *bin_of(PyObject *bins, PyObject *size) {
    PyObject *found = PyDict_GetItemWithError(bins, size);
    if (found != NULL || PyErr_Occurred())
        return found;
    PyObject *made = PyList_New(0);
    found = made == NULL ? NULL : PyDict_SetDefault(bins, size, made);
    Py_XDECREF(made);
    return found;
}

/* Put the memory of a dead block into its bin: 1, or 0 if Python has to, or -1 with an error. */
static int take_back(Alloc *self, PyObject *arena, PyObject *bins, PyObject *loan) {
    PyObject *pinned = PyObject_GetAttr(arena, name[PINNED]);
    PyObject *place = pinned == Py_False ? PyDict_GetItemWithError(self->part[LOANS], loan) : NULL;
    Py_XDECREF(pinned);
    if (place == NULL || !PyTuple_CheckExact(place))
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(place);
    PyObject *address = PyTuple_GET_ITEM(place, 0), *size = PyTuple_GET_ITEM(place, 1), *bin;
    int status = PyDict_DelItem(self->part[LOANS], loan) < 0 ? -1 : 1;
    if (status > 0 && (moved(arena, name[LIVE], -PyLong_AsSsize_t(size)), PyErr_Occurred()))
        status = -1;
    if (status > 0 && ((bin = bin_of(bins, size)) == NULL || PyList_Append(bin, address) < 0))
        status = -1;
    Py_DECREF(place);
    return status;
}

/* Put the memory of all dead blocks into their bins: 1, or 0 if Python has to, or -1 with an error. */
static int take_all_back(Alloc *self, PyObject *arena, PyObject *bins) {
    int status = 1;
    while (status > 0 && PyObject_Size(self->part[DEAD]) > 0) {
        PyObject *loan = PyObject_CallMethodNoArgs(self->part[DEAD], name[POPLEFT]);
        status = loan == NULL ? -1 : take_back(self, arena, bins, loan);
        if (status == 0) {
            PyObject *said = PyObject_CallMethodOneArg(self->part[DEAD], name[APPENDLEFT], loan);
            status = said == NULL ? -1 : 0;
            Py_XDECREF(said);
        }
        Py_XDECREF(loan);
    }
    return status;
}

/* Note that so much more is live; -1 with an error. */
static int grown(PyObject *arena, Py_ssize_t by) {
    const Py_ssize_t live = moved(arena, name[LIVE], by);
    PyObject *peak = PyErr_Occurred() ? NULL : PyObject_GetAttr(arena, name[PEAK]);
    const int higher = peak != NULL && live > PyLong_AsSsize_t(peak);
    Py_XDECREF(peak);
    if (higher)
        set(arena, name[PEAK], live);
    return PyErr_Occurred() ? -1 : 0;
}

/* A block at an address, in the books; NULL without an error if the bins were exchanged meanwhile. */
static PyObject *lent(Alloc *self, PyObject *arena, PyObject *bins, PyObject *address, PyObject *size) {
    PyTypeObject *kind = (PyTypeObject *)self->part[BLOCK];
    PyObject *block = kind->tp_alloc(kind, 0), *place = PyTuple_Pack(2, address, size);
    PyObject *made = PyObject_CallNoArgs(self->part[NOW]), *loan = NULL, *current = NULL;
    int status = -1;
    if (block != NULL && place != NULL && made != NULL) {
        FIELD(self, block, ADDRESS) = Py_NewRef(address);
        FIELD(self, block, NBYTES) = Py_NewRef(size);
        FIELD(self, block, SHARERS) = Py_NewRef(self->part[NO_SHARERS]);
        FIELD(self, block, MADE) = Py_NewRef(made);
        FIELD(self, block, CHANGES) = Py_NewRef(Py_None);
        loan = PyWeakref_NewRef(block, self->part[DIED]);
    }
    if (loan != NULL && PyDict_SetItem(self->part[LOANS], loan, place) == 0 &&
        (current = PyObject_GetAttr(arena, name[BINS])) != NULL)
        /* Bins that were made anew before this loan was known may offer the same memory. */
        status = current == bins ? grown(arena, PyLong_AsSsize_t(size)) : PyDict_DelItem(self->part[LOANS], loan) - 1;
    Py_XDECREF(current);
    Py_XDECREF(loan);
    Py_XDECREF(place);
    Py_XDECREF(made);
    if (status < 0)
        Py_CLEAR(block);
    return block;
}

static PyObject *call(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    entered |= IN_ARENA;
    Alloc *self = (Alloc *)me;
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL)
        return PyErr_Format(PyExc_TypeError, "alloc: one argument is required, a number of bytes.");
    const Py_ssize_t nbytes = PyLong_CheckExact(args[0]) ? PyLong_AsSsize_t(args[0]) : -1;
    PyErr_Clear(); /* of a number that is too large, for which Python has the words */
    PyObject *arena = referred(self->part[OF_ARENA]);
    if (arena == NULL)
        return PyErr_Format(PyExc_ReferenceError, "alloc: the arena is gone.");
    PyObject *block = NULL, *bins = PyObject_GetAttr(arena, name[BINS]);
    if (nbytes >= 0 && bins != NULL && PyDict_CheckExact(bins) && PyDict_GET_SIZE(bins)) {
        const Py_ssize_t usable = nbytes ? (nbytes + self->align - 1) & -self->align : self->align;
        PyObject *size = PyLong_FromSsize_t(usable);
        const int status = size == NULL ? -1 : take_all_back(self, arena, bins);
        PyObject *bin = status > 0 ? PyDict_GetItemWithError(bins, size) : NULL;
        const Py_ssize_t free = bin != NULL && PyList_CheckExact(bin) ? PyList_GET_SIZE(bin) : 0;
        if (free) {
            PyObject *address = Py_NewRef(PyList_GET_ITEM(bin, free - 1));
            if (PyList_SetSlice(bin, free - 1, free, NULL) == 0)
                block = lent(self, arena, bins, address, size);
            Py_DECREF(address);
        }
        Py_XDECREF(size);
    }
    Py_XDECREF(bins);
    if (block == NULL && !PyErr_Occurred()) {
        PyObject *of[] = {arena, args[0]};
        block = PyObject_Vectorcall(self->part[SLOWLY], of, 2, NULL);
    }
    Py_DECREF(arena);
    return block;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *p[PARTS];
    Py_ssize_t align;
    if (!PyArg_ParseTuple(args, "OO!OOOOOO!n:Alloc", &p[OF_ARENA], &PyType_Type, &p[BLOCK], &p[SLOWLY], &p[NO_SHARERS],
                          &p[NOW], &p[DEAD], &p[DIED], &PyDict_Type, &p[LOANS], &align))
        return NULL;
    p[OF_ARENA] = PyWeakref_NewRef(p[OF_ARENA], NULL);
    Alloc *self = p[OF_ARENA] == NULL ? NULL : new_object(type, p, PARTS);
    Py_XDECREF(p[OF_ARENA]);
    if (self == NULL)
        return NULL;
    self->call = call;
    self->align = align;
    if (find_slots((PyTypeObject *)p[BLOCK], SLOT, self->slot, SLOTS) < 0)
        Py_CLEAR(self);
    (void)named;
    return (PyObject *)self;
}

int add_arena(PyObject *module) {
    return intern(name, NAME, NAMES) < 0 ? -1 : add_type(module, "ag.native._code.Alloc", sizeof(Alloc), make, NULL, NULL);
}
