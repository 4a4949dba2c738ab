// log_softmax: out = x - max x - log(sum of exp(x - max x)), along the middle axis.  out, x [outer, length, inner]
// A NaN that max() drops still reaches the sum, and so the whole column.
// grid: outer * inner / 8 workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "ieee.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint column = column_of(inner), share = share_of(inner);
    const uint first = column / inner * length * inner + column % inner, x_0 = x_at + first, out_0 = out_at + first;
    const uint end = column < outer * inner ? length : 0;
    float mine = -INFINITY;
    for (uint k = share; k < end; k += SHARES) mine = max(mine, x[x_0 + k * inner]);
    const float largest = column_max(0, mine, inner);
    mine = 0.0;
    for (uint k = share; k < end; k += SHARES) mine += ieee_exp(x[x_0 + k * inner] - largest);
    const float logarithm = ieee_log(column_sum(1, mine, inner));
    for (uint k = share; k < end; k += SHARES) out_[out_0 + k * inner] = (x[x_0 + k * inner] - largest) - logarithm;
}
