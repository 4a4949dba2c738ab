// sum: out[o, piece, i] = scale * (x[o, k, i] summed over the k of the piece); no k gives 0
// out[outer, pieces, inner], x[outer, length, inner]; a piece is chunk long, the last may be shorter
// grid: outer * pieces * inner / columns workgroups
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "numbers.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, pieces, chunk, out_at, x_at; float scale; };
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)

const uint BLOCK = 64 * shares;  // an invocation adds up 64 elements, then such sums: long sums keep their digits

void main() {
    const uint element = column_of(inner), share = share_of(inner);
    const uint i = element % inner, piece = element / inner % pieces, o = element / inner / pieces;
    const bool valid = o < outer;
    const uint x_0 = FIRST_OF(1, x_at) + o * length * inner + i, end = valid ? min((piece + 1) * chunk, length) : 0;
    float mine = 0.0;
    for (uint k_0 = piece * chunk + share; k_0 < end; k_0 += BLOCK) {
        const uint last = min(k_0 + BLOCK, end);
        float block = 0.0;
        for (uint k = k_0; k < last; k += 4 * shares) {  // four reads under way at a time, added one after the other
            vec4 found;
            [[unroll]] for (uint c = 0; c < 4; c++)
                found[c] = NUMBER(x, 1, 0u, x_0 + min(k + c * shares, last - 1) * inner);
            [[unroll]] for (uint c = 0; c < 4; c++) block += k + c * shares < last ? found[c] : 0.0;
        }
        mine += block;
    }
    const float total = column_sum(0, mine, inner);
    if (valid && share == 0) PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + element, scale * total)
}
