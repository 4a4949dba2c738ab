// square_sums: out[k] = the sum of the squares of piece k of x
// out[pieces], x[n]; a piece is chunk long, the last may be shorter
// grid: pieces / 8 workgroups
// floats: relaxed
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"

layout(push_constant) uniform Args { uint n, pieces, chunk, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint piece = column_of(1), share = share_of(1);
    const bool valid = piece < pieces;
    const uint end = valid ? min((piece + 1) * chunk, n) : 0;
    float mine = 0.0;
    for (uint i = piece * chunk + share; i < end; i += shares) mine += x[x_at + i] * x[x_at + i];
    const float total = column_sum(0, mine, 1);
    if (valid && share == 0) out_[out_at + piece] = total;
}
