// Chains of elementwise functions: `fused` and `fused_pair`.
#include "functions.h"  // written by tools/cpu_kernels.py: MAPS, which has `map_<name>` of every function

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

// ---------------------------------------------------------------------------------------------- chains

#define GIVEN 4
#define STEPS 6

typedef struct {
    const int64_t *shape, *stride;  // of the result; of each operand, three numbers
    int64_t n, ndim;
    const int64_t *op;
    const double *value;
    int64_t result;
} chain;

static map map_of(int64_t number) {
    for (size_t k = 0; k < sizeof MAPS / sizeof *MAPS; k++)
        if (MAPS[k].number == number) return MAPS[k].run;
    return NULL;
}

static void run_chain(const chain *c, float *out, float *also, int64_t kept, const float *const *operands,
                      int64_t part, int64_t parts) {
    float memory[GIVEN + STEPS][SOON];  // the first-level cache holds it
    const float *r[GIVEN + STEPS] = {0};
    map steps[STEPS];
    int used[GIVEN] = {0}, count = 0;
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
            if (!used[k]) continue;
            r[k] = ag_strided(operands[k], c->stride + 3 * k, c->shape, c->ndim, i, m, memory[k]);
            if (r[k] != memory[k]) expect(r[k], m);
        }
        for (int k = 0; k < count; k++) {
            float *into = GIVEN + k == c->result ? out + i : memory[GIVEN + k];
            steps[k](into, r[c->op[k] >> 8 & 255], r[c->op[k] & 255], (float)c->value[k], m);
            r[GIVEN + k] = into;
        }
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
    const chain c = {a->shape, a->a_stride, a->n, a->ndim, &a->op1, a->value, a->result};
    run_chain(&c, a->out, NULL, 0, operands, part, parts);
}

KERNEL(fused_pair, {
    float *out; float *also; const float *a; const float *b; const float *c; const float *d;
    int64_t n; int64_t ndim; int64_t shape[3]; int64_t a_stride[3]; int64_t b_stride[3]; int64_t c_stride[3];
    int64_t d_stride[3]; int64_t op1; int64_t op2; int64_t op3; int64_t op4; int64_t op5; int64_t op6; double value[6];
    int64_t result; int64_t kept;
}) {
    const float *operands[GIVEN] = {a->a, a->b, a->c, a->d};
    const chain c = {a->shape, a->a_stride, a->n, a->ndim, &a->op1, a->value, a->result};
    run_chain(&c, a->out, a->also, a->kept, operands, part, parts);
}
