/* Adds up rows of numbers by a list of additions and divides the sum: `ag.parallel.comm.tree_reduction` in compiled code.

    add_up(rows, out, additions, partials, count, run_at, threads, callers)

It does what `tree_reduction` does with numpy where there was no compiler, in the same order, so with the same bits, but
goes block by block, so that sums between are in the cache. `rows` is a list of flat arrays, all of the type of `out`,
float32 or float64; an addition is (left, right, sum), numbers in a list of the rows, `out` and so many partial sums,
and the last one makes the total. Without one the only row is divided. It returns whether all that is in `out` then is
finite, and None for arrays that it does not take. Where there is much to do it gives Python's lock away. So many
threads share it out, beside so many callers, if `run_at` is the address of what runs the CPU's kernels
(`ag_run_beside` of ag/engine/backends/cpu/kernels/run.c); 0: this one alone. Knows no tree. */

#include "native.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 8192, FREE_FROM = 1 << 14, BRIEF = 16 }; /* elements; so many rows need no memory but the stack */

#ifdef _MSC_VER
typedef volatile long flag; /* there is no pool of threads, either */
#else
typedef _Atomic int flag;
#endif

typedef struct { int32_t left, right, into; } addition;

typedef struct {
    char *const *at; /* the rows and the sum */
    Py_ssize_t rows, partials, additions, size, itemsize;
    const addition *steps;
    double count;
    flag bad, no_memory; /* which any part may set */
} job;

typedef void (*runner)(const int64_t *launch, int64_t launches, int64_t threads, int64_t callers);

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

/* A row, the sum, or a partial sum, of which there is a block at a time. */
#define AT(TYPE, i) ((i) <= j->rows ? (TYPE *)j->at[i] + begin : (TYPE *)partials + ((i) - j->rows - 1) * BLOCK)

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
    /* Elements from `begin` to `end`; whether all are finite. */                                                     \
    static int NAME(const job *j, char *partials, Py_ssize_t begin, Py_ssize_t end) {                                 \
        const int multiply = is_exact(j->count);                                                                      \
        const TYPE count = (TYPE)(multiply ? 1 / j->count : j->count);                                                \
        int finite = 1;                                                                                               \
        for (; begin < end; begin += BLOCK) {                                                                         \
            const Py_ssize_t n = end - begin < BLOCK ? end - begin : BLOCK;                                           \
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

/* Whether an array is flat, of this type, of this size if one is given, and may be written to if that is asked. */
static int take(PyObject *array, Py_buffer *view, int writes, const char *format, const Py_ssize_t *size) {
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0)) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (view->ndim == 1 && view->format != NULL && strcmp(view->format, format) == 0 &&
        (size == NULL || view->shape[0] == *size))
        return 1;
    PyBuffer_Release(view);
    return 0;
}

/* One of several parts, cut where blocks are; a launch's only argument is the job. */
static void make_part(const void *argument, int64_t part, int64_t parts) {
    job *j = *(job *const *)argument;
    const int64_t blocks = (j->size + BLOCK - 1) / BLOCK;
    const Py_ssize_t begin = (Py_ssize_t)(blocks * part / parts * BLOCK);
    const Py_ssize_t behind = (Py_ssize_t)(blocks * (part + 1) / parts * BLOCK);
    const Py_ssize_t end = behind < j->size ? behind : j->size;
    char *partials = NULL;
    if (begin >= end)
        return;
    if (j->partials && (partials = malloc((size_t)(j->partials * BLOCK * j->itemsize))) == NULL) {
        j->no_memory = 1;
        return;
    }
    if (!(j->itemsize == sizeof(double) ? add_up_64 : add_up_32)(j, partials, begin, end))
        j->bad = 1;
    free(partials);
}

/* All of it, by so many threads: as a launch of a row of words, as run.c says. */
static void make(job *j, runner run, int64_t threads, int64_t callers) {
    const int64_t words[] = {(int64_t)(intptr_t)make_part, 4, 1, (int64_t)(intptr_t)j};
    if (run != NULL && threads > 1)
        run(words, 1, threads, callers);
    else
        make_part(words + 3, 0, 1);
}

static PyObject *add_up(PyObject *module, PyObject *args) {
    entered |= IN_ROWS;
    PyObject *rows, *out, *list;
    job j = {0};
    Py_ssize_t run_at, threads, callers;
    if (!PyArg_ParseTuple(args, "O!OO!nd" "nnn:add_up", &PyList_Type, &rows, &out, &PyTuple_Type, &list, &j.partials,
                          &j.count, &run_at, &threads, &callers))
        return NULL;
    j.rows = PyList_GET_SIZE(rows);
    j.additions = PyTuple_GET_SIZE(list);
    if (j.rows < 1 || j.partials < 0 || (j.rows > 1 && j.additions == 0)) {
        PyErr_SetString(PyExc_ValueError, "add_up: there is nothing to add up");
        return NULL;
    }
    Py_buffer few[BRIEF + 1], *views = few;
    char *few_at[BRIEF + 1], **at = few_at;
    addition few_steps[BRIEF], *steps = few_steps;
    PyObject *answer = NULL;
    Py_ssize_t taken = 0;
    if (j.rows > BRIEF || j.additions > BRIEF) {
        views = PyMem_Calloc((size_t)j.rows + 1, sizeof *views);
        at = PyMem_Calloc((size_t)j.rows + 1, sizeof *at);
        steps = PyMem_Calloc((size_t)j.additions + 1, sizeof *steps);
        if (views == NULL || at == NULL || steps == NULL) {
            PyErr_NoMemory();
            goto end;
        }
    }
    if (!steps_of(list, steps, j.rows + 1 + j.partials))
        goto end;
    j.itemsize = sizeof(float);
    if (!take(out, &views[0], 1, "f", NULL)) {
        j.itemsize = sizeof(double);
        if (!take(out, &views[0], 1, "d", NULL)) {
            answer = Py_NewRef(Py_None);
            goto end;
        }
    }
    taken = 1;
    j.size = views[0].shape[0];
    at[j.rows] = views[0].buf;
    for (; taken <= j.rows; taken++) {
        if (!take(PyList_GET_ITEM(rows, taken - 1), &views[taken], 0, views[0].format, views[0].shape)) {
            answer = Py_NewRef(Py_None);
            goto end;
        }
        at[taken - 1] = views[taken].buf;
    }
    j.at = at;
    j.steps = steps;
    if (j.size * j.rows < FREE_FROM) {
        make(&j, NULL, 1, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS
        make(&j, (runner)(intptr_t)run_at, threads, callers);
        Py_END_ALLOW_THREADS
    }
    answer = j.no_memory ? PyErr_NoMemory() : PyBool_FromLong(!j.bad);
end:
    for (Py_ssize_t i = 0; i < taken; i++)
        PyBuffer_Release(&views[i]);
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
int add_rows(PyObject *module) { return PyModule_AddFunctions(module, methods); }
