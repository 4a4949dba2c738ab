// sample_matmul: out[o, r, c, n] = sum over k of A[o, r, k, n] B[o, k, c, n]; with ta A is [o, k, r, n], tb likewise
// Samples n are the last axis, so neighbours read neighbouring words; an invocation makes 4 x 4 elements of a sample.
// grid: squares invocations
// work: outer * rows * cols * inner * samples multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#define TYPES 0
#include "numbers.glsl"

layout(push_constant) uniform Args { uint outer, rows, cols, inner, samples, ta, tb, out_at, a_at, b_at; };
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, A, a)
NUMBERS(2, readonly, B, b)

const uint SIDE = 4;
#define EACH(i) [[unroll]] for (uint i = 0; i < SIDE; i++)

void main() {
    const uint down = (rows + SIDE - 1) / SIDE, across = (cols + SIDE - 1) / SIDE;
    const uint i = invocation(), n = i % samples, c = i / samples % across * SIDE;
    const uint r = i / samples / across % down * SIDE, o = i / samples / across / down;
    if (o >= outer) return;
    const uint a_row = (ta != 0 ? 1 : inner) * samples, a_k = (ta != 0 ? rows : 1) * samples;
    const uint b_col = (tb != 0 ? inner : 1) * samples, b_k = (tb != 0 ? 1 : cols) * samples;
    const uint a_0 = o * rows * inner * samples + n, b_0 = o * inner * cols * samples + n;
    vec4 sums[SIDE];
    EACH(y) sums[y] = vec4(0.0);
    for (uint k = 0; k < inner; k++) {
        vec4 of_b;
        EACH(x) of_b[x] = NUMBER(b, 2, b_at, b_0 + min(c + x, cols - 1) * b_col + k * b_k);
        EACH(y) sums[y] = fma(vec4(NUMBER(a, 1, a_at, a_0 + min(r + y, rows - 1) * a_row + k * a_k)), of_b, sums[y]);
    }
    EACH(y) EACH(x)
        if (r + y < rows && c + x < cols)
            PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + ((o * rows + r + y) * cols + c + x) * samples + n, sums[y][x])
}
