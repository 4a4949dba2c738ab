// out[i] = f(a[...], b[...]): the operands are walked along the axes of out with steps of their own, and may repeat.
// The kernel defines f after including this: equal, and those that kernels_build.py writes of functions.glsl.
#include "turns.glsl"
#include "walk.glsl"
#define MAX_DIMS 8

layout(push_constant) uniform Args {
    uint n, ndim, out_at, a_at, b_at;
    uint multipliers[7], shifts[2], a_step[MAX_DIMS], b_step[MAX_DIMS];
};
#include "numbers.glsl"
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, A, a)
NUMBERS(2, readonly, B, b)

float f(float a, float b);

float result_of(uint i) {
    uint q = i, a_i = i * a_step[0], b_i = i * b_step[0];
    for (uint axis = 1; axis < MAX_DIMS; axis++) {
        if (axis >= ndim) break;
        q = NEXT(q, axis);
        a_i += q * a_step[axis];
        b_i += q * b_step[axis];
    }
    return f(NUMBER(a, 1, a_at, a_i), NUMBER(b, 2, b_at, b_i));
}

void main() {
    uint word;
    for (uint turn = 0; turn < turns * IN_A_ROW(3u); turn++) {
        const uint i = PLACE(turn, 3u);
        if (i >= n) return;
        PUT(out_, 0, out_at, i, n, result_of(i), word)
    }
}
