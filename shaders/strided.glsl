// out[i] = f(x[...]): x is walked along the axes of out with strides of its own, 0 where it repeats.  The kernel
// defines f after including this, and may define PARAMS and TYPE before, as in unary.glsl: expand and permute.
#include "turns.glsl"
#ifndef PARAMS
#define PARAMS
#endif
#ifndef TYPE
#define TYPE float
#endif
#define MAX_DIMS 8

layout(push_constant) uniform Args {
    uint n, ndim, out_at, x_at;
    uint shape[MAX_DIMS], x_stride[MAX_DIMS];
    PARAMS
};
layout(set = 0, binding = 0) buffer Out_ { TYPE out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { TYPE x[]; };

TYPE f(TYPE x);

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i >= n) return;
        uint rest = i, x_i = x_at;
        for (uint axis = ndim; axis-- > 0;) {
            x_i += rest % shape[axis] * x_stride[axis];
            rest /= shape[axis];
        }
        out_[out_at + i] = f(x[x_i]);
    }
}
