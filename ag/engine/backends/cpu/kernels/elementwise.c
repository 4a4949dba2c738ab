// Elementwise functions over arrays, and chains of them: the kernels of functions.glsl, `fused` and `fused_pair`.
#include "ag.h"

#define BLOCK 512  // elements of a chain's registers: ten of them stay in the first-level cache

const float *ag_strided(const float *x, const int64_t *stride, const int64_t *shape, int64_t ndim, int64_t first,
                        int64_t count, float *into) {
    if (ndim == 1 && stride[0] == 1) return x + first;
    int64_t index[8], at = 0, rest = first;
    for (int64_t k = ndim - 1; k >= 0; k--) {
        index[k] = rest % shape[k];
        rest /= shape[k];
        at += index[k] * stride[k];
    }
    if (ndim == 0) {
        for (int64_t i = 0; i < count; i++) into[i] = x[0];
        return into;
    }
    const int64_t last = ndim - 1, step = stride[last];
    for (int64_t i = 0; i < count;) {
        const int64_t run = least(shape[last] - index[last], count - i);
        if (step == 1) {
            if (run == count) return x + at;
            memcpy(into + i, x + at, (size_t)run * sizeof *x);
        } else if (step == 0) {
            for (int64_t j = 0; j < run; j++) into[i + j] = x[at];
        } else {
            for (int64_t j = 0; j < run; j++) into[i + j] = x[at + j * step];
        }
        i += run;
        at -= index[last] * step;
        index[last] = 0;
        for (int64_t k = last - 1; k >= 0; k--) {  // the next row
            at += stride[k];
            if (++index[k] < shape[k]) break;
            at -= shape[k] * stride[k];
            index[k] = 0;
        }
    }
    return into;
}

// ---------------------------------------------------------------------------------------------- single functions

typedef void (*map)(float *out, const float *x, const float *y, float value, int64_t n);

typedef struct { int64_t n, ndim; const int64_t *shape, *a_stride, *b_stride; } walk;

static void map_broadcast(map f, float *out, const float *a, const float *b, walk w, int64_t part, int64_t parts) {
    float x[BLOCK], y[BLOCK];
    const span s = share(w.n, BLOCK, part, parts);
    for (int64_t i = s.begin; i < s.end; i += BLOCK) {
        const int64_t m = least(BLOCK, s.end - i);
        f(out + i, ag_strided(a, w.a_stride, w.shape, w.ndim, i, m, x),
          ag_strided(b, w.b_stride, w.shape, w.ndim, i, m, y), 0.0f, m);
    }
}

#include "functions.h"  // written by tools/cpu_kernels.py: `map_<name>` and a kernel for every function, and MAPS

// ---------------------------------------------------------------------------------------------- chains

#define GIVEN 4
#define STEPS 6

// Instructions whose functions were looked up.
typedef struct {
    map step[STEPS];
    int64_t x[STEPS], y[STEPS];
    const double *value;
    int64_t count, result;
    int reads[GIVEN];  // whether an operand is used
} chain;

static chain chain_of(const int64_t *op, const double *value, int64_t result) {
    chain c = {.value = value, .result = result};
    for (; c.count < STEPS && op[c.count]; c.count++) {
        const int64_t k = c.count, number = op[k] >> 16;
        for (size_t m = 0; m < sizeof MAPS / sizeof *MAPS; m++)
            if (MAPS[m].number == number) c.step[k] = MAPS[m].run;
        c.x[k] = op[k] >> 8 & 255;
        c.y[k] = op[k] & 255;
        if (c.x[k] < GIVEN) c.reads[c.x[k]] = 1;
        if (c.y[k] < GIVEN) c.reads[c.y[k]] = 1;
    }
    return c;
}

typedef float block[BLOCK];

// Registers of a chain for m elements, the first of which are its operands; the result goes to `out`.
static void follow(const chain *c, const float **r, block *memory, float *out, int64_t m) {
    for (int64_t k = 0; k < c->count; k++) {
        float *into = GIVEN + k == c->result ? out : memory[GIVEN + k];
        c->step[k](into, r[c->x[k]], r[c->y[k]], (float)c->value[k], m);
        r[GIVEN + k] = into;
    }
}

typedef struct { const int64_t *shape, *stride; int64_t n, ndim; } places;  // of each operand, three strides

static void run_chain(chain c, places at, float *out, float *also, int64_t kept, const float *const *operands,
                      int64_t part, int64_t parts) {
    block memory[GIVEN + STEPS];
    const float *r[GIVEN + STEPS] = {0};
    const span s = share(at.n, BLOCK, part, parts);
    for (int64_t i = s.begin; i < s.end; i += BLOCK) {
        const int64_t m = least(BLOCK, s.end - i);
        for (int k = 0; k < GIVEN; k++)
            if (c.reads[k]) r[k] = ag_strided(operands[k], at.stride + 3 * k, at.shape, at.ndim, i, m, memory[k]);
        follow(&c, r, memory, out + i, m);
        if (also) memcpy(also + i, r[kept], (size_t)m * sizeof *also);
    }
}

KERNEL(fused, {
    float *out; const float *a; const float *b; const float *c; const float *d;
    int64_t n; int64_t ndim; int64_t shape[3]; int64_t a_stride[3]; int64_t b_stride[3]; int64_t c_stride[3];
    int64_t d_stride[3]; int64_t op1; int64_t op2; int64_t op3; int64_t op4; int64_t op5; int64_t op6; double value[6];
    int64_t result;
}) {
    const float *operands[GIVEN] = {a->a, a->b, a->c, a->d};
    const places at = {a->shape, a->a_stride, a->n, a->ndim};
    run_chain(chain_of(&a->op1, a->value, a->result), at, a->out, NULL, 0, operands, part, parts);
}

KERNEL(fused_pair, {
    float *out; float *also; const float *a; const float *b; const float *c; const float *d;
    int64_t n; int64_t ndim; int64_t shape[3]; int64_t a_stride[3]; int64_t b_stride[3]; int64_t c_stride[3];
    int64_t d_stride[3]; int64_t op1; int64_t op2; int64_t op3; int64_t op4; int64_t op5; int64_t op6; double value[6];
    int64_t result; int64_t kept;
}) {
    const float *operands[GIVEN] = {a->a, a->b, a->c, a->d};
    const places at = {a->shape, a->a_stride, a->n, a->ndim};
    run_chain(chain_of(&a->op1, a->value, a->result), at, a->out, a->also, a->kept, operands, part, parts);
}

// ---------------------------------------------------------------------------------------------- behind a product

void ag_follow(const epilogue *e, const float *made, int64_t rows, int64_t cols, span down, span across) {
    const chain c = chain_of(e->op, e->value, e->result);
    block memory[GIVEN + STEPS];
    const float *r[GIVEN + STEPS] = {0};
    const int64_t shape[2] = {rows, cols}, one = 1;
    int64_t stride[3][2];
    for (int k = 0; k < 3; k++) {
        stride[k][1] = e->along[k] & 1;
        stride[k][0] = e->along[k] >> 1 ? (stride[k][1] ? cols : 1) : 0;
    }
    // Whole rows lie side by side, so that short ones are done together.
    const int whole = across.begin == 0 && across.end == cols;
    const int64_t first = down.begin * cols, step = whole ? (down.end - down.begin) * cols : across.end - across.begin;
    for (int64_t row = whole ? first : first + across.begin; row < down.end * cols; row += whole ? step : cols)
        for (int64_t i = row; i < row + step; i += BLOCK) {
            const int64_t m = least(BLOCK, row + step - i);
            r[0] = made + i;
            for (int k = 0; k < 3; k++)
                if (c.reads[1 + k])
                    r[1 + k] = e->along[k] == 3 ? ag_strided(e->other[k], &one, NULL, 1, i, m, NULL)
                                                : ag_strided(e->other[k], stride[k], shape, 2, i, m, memory[1 + k]);
            follow(&c, r, memory, e->out + i, m);
            if (e->also != NULL && e->also != made) memcpy(e->also + i, r[e->kept], (size_t)m * sizeof *made);
        }
}
