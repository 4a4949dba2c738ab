// log_softmax: out = x - max x - log(sum of exp(x - max x)), along the middle axis.  out, x [outer, length, inner]
// grid: outer * inner / columns workgroups
// turns: 2 * length / shares of an invocation's loops
#version 450
#extension GL_GOOGLE_include_directive : require
#include "columns.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint column = column_of(inner), share = share_of(inner);
    const uint first = column / inner * length * inner + column % inner, x_0 = x_at + first, out_0 = out_at + first;
    const uint end = column < outer * inner ? length : 0;
    Exponentials mine = NONE;
    for (uint k = share; k < end; k += shares) include(mine, x[x_0 + k * inner]);
    const Exponentials all = column_exponentials(mine, inner);
    const float logarithm = ieee_log(all.total);
    for (uint k = share; k < end; k += shares)
        out_[out_0 + k * inner] = (x[x_0 + k * inner] - all.largest) - logarithm;
}
