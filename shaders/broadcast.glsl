// out[i] = f(a[...], b[...]): the operands are walked along the axes of out with steps of their own, and may repeat.
// The kernel defines f after including this: equal, and those that kernels_build.py writes of functions.glsl.
#include "turns.glsl"
#include "walk.glsl"
#define MAX_DIMS 8

layout(push_constant) uniform Args {
    uint n, ndim, out_at, a_at, b_at;
    uint multipliers[7], shifts[2], a_step[MAX_DIMS], b_step[MAX_DIMS];
};
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 2) readonly buffer B_ { float b[]; };

float f(float a, float b);

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i >= n) return;
        uint q = i, a_i = a_at + i * a_step[0], b_i = b_at + i * b_step[0];
        for (uint axis = 1; axis < MAX_DIMS; axis++) {
            if (axis >= ndim) break;
            q = NEXT(q, axis);
            a_i += q * a_step[axis];
            b_i += q * b_step[axis];
        }
        out_[out_at + i] = f(a[a_i], b[b_i]);
    }
}
