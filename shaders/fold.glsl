// out[o, piece, i] = the x[o, k, i] of the k of the piece by COMBINE, NEUTRAL of none; max, min and prod include it.
// out[outer, pieces, inner], x[outer, length, inner]; a piece is chunk long, the last may be shorter
#include "reduce.glsl"
#include "ieee.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, pieces, chunk, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

COMBINED(column_fold, COMBINE)

void main() {
    const uint element = column_of(inner), share = share_of(inner);
    const uint i = element % inner, piece = element / inner % pieces, o = element / inner / pieces;
    const bool valid = o < outer;
    const uint x_0 = x_at + o * length * inner + i, end = valid ? min((piece + 1) * chunk, length) : 0;
    float mine = NEUTRAL;
    for (uint k = piece * chunk + share; k < end; k += shares) mine = COMBINE(mine, x[x_0 + k * inner]);
    const float whole = column_fold(0, mine, inner);
    if (valid && share == 0) out_[out_at + element] = whole;
}
