// out[i] = f(a[...], b[...]): the operands are walked along the axes of out with strides of their own, 0 where they
// repeat.  The kernel defines f after including this: equal, and those that kernels_build.py writes of functions.glsl.
#include "turns.glsl"
#define MAX_DIMS 8

layout(push_constant) uniform Args {
    uint n, ndim, out_at, a_at, b_at;
    uint shape[MAX_DIMS], a_stride[MAX_DIMS], b_stride[MAX_DIMS];
};
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 2) readonly buffer B_ { float b[]; };

float f(float a, float b);

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i >= n) return;
        uint rest = i, a_i = a_at, b_i = b_at;
        for (uint axis = ndim; axis-- > 0;) {
            const uint k = rest % shape[axis];
            rest /= shape[axis];
            a_i += k * a_stride[axis];
            b_i += k * b_stride[axis];
        }
        out_[out_at + i] = f(a[a_i], b[b_i]);
    }
}
