// softmax_grad: out = y (g - sum(y g)), along the middle axis.  out, y, g [outer, length, inner]
// grid: outer * inner / columns workgroups
// turns: 2 * length / shares of an invocation's loops
#version 450
#extension GL_GOOGLE_include_directive : require
#include "columns.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, y_at, g_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer Y_ { float y[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };

void main() {
    const uint column = column_of(inner), share = share_of(inner);
    const uint first = column / inner * length * inner + column % inner;
    const uint y_0 = y_at + first, g_0 = g_at + first, out_0 = out_at + first;
    const uint end = column < outer * inner ? length : 0;
    float mine = 0.0;
    for (uint k = share; k < end; k += shares) mine += y[y_0 + k * inner] * g[g_0 + k * inner];
    const float total = column_sum(0, mine, inner);
    for (uint k = share; k < end; k += shares)
        out_[out_0 + k * inner] = y[y_0 + k * inner] * (g[g_0 + k * inner] - total);
}
