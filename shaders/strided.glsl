// out[i] = f(x[...]): x is walked along the axes of out with steps of its own, and may repeat.  The kernel defines f
// after including this, and may define PARAMS and TYPE before, as in unary.glsl: expand and permute.
#include "turns.glsl"
#include "walk.glsl"
#ifndef PARAMS
#define PARAMS
#endif
#ifndef TYPE
#define TYPE float
#endif
#define MAX_DIMS 8

layout(push_constant) uniform Args {
    uint n, ndim, out_at, x_at;
    uint multipliers[7], shifts[2], x_step[MAX_DIMS];
    PARAMS
};
layout(set = 0, binding = 0) buffer Out_ { TYPE out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { TYPE x[]; };

TYPE f(TYPE x);

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i >= n) return;
        uint q = i, x_i = x_at + i * x_step[0];
        for (uint axis = 1; axis < MAX_DIMS; axis++) {
            if (axis >= ndim) break;
            q = NEXT(q, axis);
            x_i += q * x_step[axis];
        }
        out_[out_at + i] = f(x[x_i]);
    }
}
