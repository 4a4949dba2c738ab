// Chains of elementwise functions: `fused` and `fused_pair`.
#include "halves.h"
#include "functions.h"  // written by tools/cpu_kernels.py: MAPS, which has `map_<name>` of every function

const float *ag_strided(const float *x, int type, const int64_t *stride, const int64_t *shape, int64_t ndim, int64_t first,
                        int64_t count, float *into) {
    if (ndim == 1 && stride[0] == 1) return next_wide(x, type, first, count, into);
    int64_t index[8], at = 0, rest = first;
    for (int64_t k = ndim - 1; k >= 0; k--) {
        index[k] = rest % shape[k];
        rest /= shape[k];
        at += index[k] * stride[k];
    }
    if (ndim == 0) {
        const float number = number_at(x, type, 0);
        for (int64_t i = 0; i < count; i++) into[i] = number;
        return into;
    }
    const int64_t last = ndim - 1, step = stride[last];
    for (int64_t i = 0; i < count;) {
        const int64_t run = least(shape[last] - index[last], count - i);
        if (step == 1) {
            const float *found = next_wide(x, type, at, run, into + i);
            if (run == count) return found;
            if (!type) memcpy(into + i, found, (size_t)run * sizeof *x);
        } else if (step == 0) {
            const float number = number_at(x, type, at);
            for (int64_t j = 0; j < run; j++) into[i + j] = number;
        } else if (type) {
            for (int64_t j = 0; j < run; j++) into[i + j] = number_at(x, type, at + j * step);
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

// ---------------------------------------------------------------------------------------------- chains

#define GIVEN 4
#define STEPS 6

typedef struct {
    const int64_t *shape, *stride;  // of the result; of each operand, three numbers
    int64_t n, ndim;
    const int64_t *op;
    const double *value;
    int64_t result, types;
} chain;

static map map_of(int64_t number) {
    for (size_t k = 0; k < sizeof MAPS / sizeof *MAPS; k++)
        if (MAPS[k].number == number) return MAPS[k].run;
    return NULL;
}

// `outs` results: the chain's, and perhaps that of register `second`, too.
static void run_chain(const chain *c, int outs, float *out, float *also, int64_t second, const float *const *operands,
                      int64_t part, int64_t parts) {
    ALIGNED float memory[GIVEN + STEPS][SOON];  // the first-level cache holds it
    const float *r[GIVEN + STEPS] = {0};
    map steps[STEPS];
    int used[GIVEN] = {0}, count = 0;
    const int type = type_of(c->types, 0), other = type_of(c->types, 1);
    for (; count < STEPS && c->op[count]; count++) {
        const int64_t x = c->op[count] >> 8 & 255, y = c->op[count] & 255;
        steps[count] = map_of(c->op[count] >> 16);
        if (x < GIVEN) used[x] = 1;
        if (y < GIVEN) used[y] = 1;
    }
    const span s = share(c->n, SOON, part, parts);
    for (int64_t i = s.begin; i < s.end; i += SOON) {
        const int64_t m = least(SOON, s.end - i);
        for (int k = 0; k < GIVEN; k++) {
            if (used[k]) r[k] = ag_strided(operands[k], type_of(c->types, outs + k), c->stride + 3 * k, c->shape, c->ndim, i, m,
                                           memory[k]);
        }
        for (int k = 0; k < count; k++) {
            float *into = GIVEN + k == c->result ? room(out, type, i, memory[GIVEN + k]) : memory[GIVEN + k];
            steps[k](into, r[c->op[k] >> 8 & 255], r[c->op[k] & 255], (float)c->value[k], m);
            r[GIVEN + k] = into;
        }
        kept(out, type, i, m, r[c->result]);
        if (outs < 2) continue;
        if (other) kept(also, other, i, m, r[second]);
        else memcpy(also + i, r[second], (size_t)m * sizeof *also);
    }
}

KERNEL(fused, {
    number *out; const number *a; const number *b; const number *c; const number *d;
    int64_t n; int64_t ndim; int64_t shape[3]; int64_t a_stride[3]; int64_t b_stride[3]; int64_t c_stride[3];
    int64_t d_stride[3]; int64_t op1; int64_t op2; int64_t op3; int64_t op4; int64_t op5; int64_t op6; double value[6];
    int64_t result; int64_t types;
}) {
    const float *operands[GIVEN] = {a->a, a->b, a->c, a->d};
    const chain c = {a->shape, a->a_stride, a->n, a->ndim, &a->op1, a->value, a->result, a->types};
    run_chain(&c, 1, a->out, NULL, 0, operands, part, parts);
}

KERNEL(fused_pair, {
    number *out; number *also; const number *a; const number *b; const number *c; const number *d;
    int64_t n; int64_t ndim; int64_t shape[3]; int64_t a_stride[3]; int64_t b_stride[3]; int64_t c_stride[3];
    int64_t d_stride[3]; int64_t op1; int64_t op2; int64_t op3; int64_t op4; int64_t op5; int64_t op6; double value[6];
    int64_t result; int64_t kept; int64_t types;
}) {
    const float *operands[GIVEN] = {a->a, a->b, a->c, a->d};
    const chain c = {a->shape, a->a_stride, a->n, a->ndim, &a->op1, a->value, a->result, a->types};
    run_chain(&c, 2, a->out, a->also, a->kept, operands, part, parts);
}
