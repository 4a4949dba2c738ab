// out[o, piece, i] = the x[o, k, i] of the k of the piece by COMBINE, NEUTRAL of none; max, min and prod include it.
// out[outer, pieces, inner], x[outer, length, inner]; a piece is chunk long, the last may be shorter
#include "reduce.glsl"
#include "ieee.glsl"
#include "numbers.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, pieces, chunk, out_at, x_at; };
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)

COMBINED(column_fold, COMBINE)

void main() {
    const uint element = column_of(inner), share = share_of(inner);
    const uint i = element % inner, piece = element / inner % pieces, o = element / inner / pieces;
    const bool valid = o < outer;
    const uint x_0 = FIRST_OF(1, x_at) + o * length * inner + i, end = valid ? min((piece + 1) * chunk, length) : 0;
    float mine = NEUTRAL;
    for (uint k = piece * chunk + share; k < end; k += shares) mine = COMBINE(mine, NUMBER(x, 1, 0u, x_0 + k * inner));
    const float whole = column_fold(0, mine, inner);
    if (valid && share == 0) PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + element, whole)
}
