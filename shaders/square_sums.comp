// square_sums: near[k] = sum of squares of piece k of x, chunk long or less; far[k] = that of x 2^-80.  [pieces], x[n]
// grid: pieces / 8 workgroups
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"

layout(push_constant) uniform Args { uint n, pieces, chunk, near_at, far_at, x_at; };
layout(set = 0, binding = 0) buffer Near_ { float near[]; };
layout(set = 0, binding = 1) buffer Far_ { float far[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };

void main() {
    const uint piece = column_of(1), share = share_of(1);
    const bool valid = piece < pieces;
    const uint end = valid ? min((piece + 1) * chunk, n) : 0;
    float mine = 0.0, less = 0.0;
    for (uint i = piece * chunk + share; i < end; i += shares) {
        const float here = x[x_at + i], small = here * 8.2718061e-25;
        mine += here * here;
        less += small * small;
    }
    const float total = column_sum(0, mine, 1), scaled = column_sum(1, less, 1);
    if (!valid || share != 0) return;
    near[near_at + piece] = total;
    far[far_at + piece] = scaled;
}
