// out[i] = f(x[...]): x is walked along the axes of out with steps of its own, and may repeat.  The kernel defines f
// after including this, and may define PARAMS before, as in unary.glsl: expand and permute.  Both move any words.
#include "turns.glsl"
#include "walk.glsl"
#include "numbers.glsl"
#ifndef PARAMS
#define PARAMS
#endif
#define MAX_DIMS 8

layout(push_constant) uniform Args {
    uint n, ndim, out_at, x_at;
    uint multipliers[7], shifts[2], x_step[MAX_DIMS];
    PARAMS
};
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)

uint f(uint x);

void main() {
    uint word;
    for (uint turn = 0; turn < turns * IN_A_ROW(3u); turn++) {
        const uint i = PLACE(turn, 3u);
        if (i >= n) return;
        uint q = i, x_i = i * x_step[0];
        for (uint axis = 1; axis < MAX_DIMS; axis++) {
            if (axis >= ndim) break;
            q = NEXT(q, axis);
            x_i += q * x_step[axis];
        }
        const uint moved = f(TYPE_OF(1) == 0u ? xhalves[x_at + x_i] : floatBitsToUint(NUMBER(x, 1, x_at, x_i)));
        if (TYPE_OF(0) == 0u) out_halves[out_at + i] = moved;
        else { PUT(out_, 0, out_at, i, n, uintBitsToFloat(moved), word) }
    }
}
