/* Adds up rows of numbers by a list of additions and divides the sum: `ag.parallel.comm.tree_reduction` in compiled code.

    add_up(rows, out, additions, partials, count, begin, end)

It does what `tree_reduction` does with numpy where there was no compiler, in the same order, so with the same bits, but
goes block by block through elements begin .. end - 1, so that sums between are in the cache. `rows` is a list of
flat arrays, all of the type of `out`, float32 or float64; an addition is (left, right, sum), numbers in a list of the
rows, `out` and so many partial sums, and the last one makes the total. Without one the only row is divided.
It returns whether all that is in `out` then is finite, and None for arrays that it does not take. Where there is much
to do it gives Python's lock away, and each of several threads calls it with a part of its own. Knows no tree. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 8192, FREE_FROM = 1 << 14, BRIEF = 16 }; /* elements; so many rows need no memory but the stack */

typedef struct { int32_t left, right, into; } addition;

typedef struct {
    char **at; /* the rows, the sum, the partial sums; these begin anew with every block */
    Py_ssize_t rows, partials, additions, begin, end;
    const addition *steps;
    double count;
} job;

/* Loops for the widest vectors that the processor has, where the compiler and the loader can choose at run time. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define ANY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ANY_PROCESSOR
#endif

/* x / count is x times its inverse, to the bit, where that is a power of two and no rounding is lost at either end. */
static int is_exact(double count) {
    int exponent;
    return frexp(count, &exponent) == 0.5 && exponent > -100 && exponent < 100;
}

#define AT(TYPE, i) ((TYPE *)j->at[i] + ((i) <= j->rows ? begin : 0)) /* a row, the sum, or a partial sum */

#define ADD_UP(NAME, TYPE, BITS, EXPONENT)                                                                            \
    ANY_PROCESSOR static void NAME##_add(TYPE *into, const TYPE *left, const TYPE *right, Py_ssize_t n) {             \
        for (Py_ssize_t k = 0; k < n; k++)                                                                            \
            into[k] = left[k] + right[k];                                                                             \
    }                                                                                                                 \
    /* Of a sum, of two where there is a right one; whether all are finite. */                                        \
    ANY_PROCESSOR static int NAME##_mean(TYPE *out, const TYPE *left, const TYPE *right, TYPE count, int multiply,    \
                                         Py_ssize_t n) {                                                              \
        const BITS exponent = EXPONENT;                                                                               \
        BITS bad = 0;                                                                                                 \
        for (Py_ssize_t k = 0; k < n; k++) {                                                                          \
            const TYPE sum = right ? left[k] + right[k] : left[k], mean = multiply ? sum * count : sum / count;       \
            BITS bits;                                                                                                \
            memcpy(&bits, &mean, sizeof bits);                                                                        \
            bad |= (bits & exponent) == exponent; /* infinite or NaN */                                               \
            out[k] = mean;                                                                                            \
        }                                                                                                             \
        return !bad;                                                                                                  \
    }                                                                                                                 \
    static int NAME(const job *j) {                                                                                   \
        const int multiply = is_exact(j->count);                                                                      \
        const TYPE count = (TYPE)(multiply ? 1 / j->count : j->count);                                                \
        int finite = 1;                                                                                               \
        for (Py_ssize_t begin = j->begin; begin < j->end; begin += BLOCK) {                                           \
            const Py_ssize_t n = j->end - begin < BLOCK ? j->end - begin : BLOCK;                                     \
            const TYPE *left = AT(TYPE, 0), *right = NULL;                                                            \
            for (Py_ssize_t i = 0; i < j->additions; i++) {                                                           \
                left = AT(TYPE, j->steps[i].left);                                                                    \
                right = AT(TYPE, j->steps[i].right);                                                                  \
                if (i + 1 < j->additions)                                                                             \
                    NAME##_add(AT(TYPE, j->steps[i].into), left, right, n);                                           \
            }                                                                                                         \
            finite &= NAME##_mean(AT(TYPE, j->rows), left, right, count, multiply, n);                                \
        }                                                                                                             \
        return finite;                                                                                                \
    }

ADD_UP(add_up_32, float, uint32_t, 0x7F800000u)
ADD_UP(add_up_64, double, uint64_t, 0x7FF0000000000000u)

/* The additions as numbers; whether each of them is one of the list. */
static int steps_of(PyObject *list, addition *steps, Py_ssize_t known) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list); i++) {
        int left, right, into;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(list, i), "iii:add_up", &left, &right, &into))
            return 0;
        if (left < 0 || right < 0 || into < 0 || left >= known || right >= known || into >= known) {
            PyErr_SetString(PyExc_IndexError, "add_up: an addition of what is not there");
            return 0;
        }
        steps[i] = (addition){left, right, into};
    }
    return 1;
}

/* Whether an array is flat, has so many elements of this type, and may be written to if that is asked. */
static int take(PyObject *array, Py_buffer *view, int writes, const char *format, Py_ssize_t size) {
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0)) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (view->ndim == 1 && view->format != NULL && strcmp(view->format, format) == 0 && view->shape[0] >= size)
        return 1;
    PyBuffer_Release(view);
    return 0;
}

static int made(job *j, int wide) { return wide ? add_up_64(j) : add_up_32(j); }

static PyObject *add_up(PyObject *module, PyObject *args) {
    PyObject *rows, *out, *list;
    job j = {0};
    if (!PyArg_ParseTuple(args, "O!OO!nd" "nn:add_up", &PyList_Type, &rows, &out, &PyTuple_Type, &list, &j.partials,
                          &j.count, &j.begin, &j.end))
        return NULL;
    j.rows = PyList_GET_SIZE(rows);
    j.additions = PyTuple_GET_SIZE(list);
    if (j.rows < 1 || j.begin < 0 || j.partials < 0 || (j.rows > 1 && j.additions == 0)) {
        PyErr_SetString(PyExc_ValueError, "add_up: there is nothing to add up");
        return NULL;
    }
    const Py_ssize_t known = j.rows + 1 + j.partials;
    Py_buffer few[BRIEF + 1], *views = few;
    char *few_at[BRIEF + 1], **at = few_at;
    addition few_steps[BRIEF], *steps = few_steps;
    char *scratch = NULL;
    PyObject *answer = NULL;
    Py_ssize_t taken = 0;
    if (known > BRIEF + 1 || j.additions > BRIEF) {
        views = PyMem_Calloc((size_t)j.rows + 1, sizeof *views);
        at = PyMem_Calloc((size_t)known, sizeof *at);
        steps = PyMem_Calloc((size_t)j.additions + 1, sizeof *steps);
        if (views == NULL || at == NULL || steps == NULL) {
            PyErr_NoMemory();
            goto end;
        }
    }
    if (!steps_of(list, steps, known))
        goto end;
    int wide = 0;
    if (!take(out, &views[0], 1, "f", j.end)) {
        wide = take(out, &views[0], 1, "d", j.end);
        if (!wide) {
            answer = Py_NewRef(Py_None);
            goto end;
        }
    }
    taken = 1;
    at[j.rows] = views[0].buf;
    for (; taken <= j.rows; taken++) {
        if (!take(PyList_GET_ITEM(rows, taken - 1), &views[taken], 0, wide ? "d" : "f", j.end)) {
            answer = Py_NewRef(Py_None);
            goto end;
        }
        at[taken - 1] = views[taken].buf;
    }
    if (j.partials) {
        const size_t each = BLOCK * (wide ? sizeof(double) : sizeof(float));
        if ((scratch = PyMem_Malloc((size_t)j.partials * each)) == NULL) {
            PyErr_NoMemory();
            goto end;
        }
        for (Py_ssize_t i = 0; i < j.partials; i++)
            at[j.rows + 1 + i] = scratch + (size_t)i * each;
    }
    j.at = at;
    j.steps = steps;
    int finite;
    if ((j.end - j.begin) * j.rows < FREE_FROM) {
        finite = made(&j, wide);
    } else {
        Py_BEGIN_ALLOW_THREADS
        finite = made(&j, wide);
        Py_END_ALLOW_THREADS
    }
    answer = PyBool_FromLong(finite);
end:
    for (Py_ssize_t i = 0; i < taken; i++)
        PyBuffer_Release(&views[i]);
    PyMem_Free(scratch);
    if (views != few)
        PyMem_Free(views);
    if (at != few_at)
        PyMem_Free(at);
    if (steps != few_steps)
        PyMem_Free(steps);
    (void)module;
    return answer;
}

static PyMethodDef methods[] = {{"add_up", add_up, METH_VARARGS, "Add up rows; see the head of rows.c."},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_rows", .m_methods = methods};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&definition); }
