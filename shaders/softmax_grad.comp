// softmax_grad: out = y (g - sum(y g)), along the middle axis.  out, y, g [outer, length, inner]
// grid: outer * inner workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, y_at, g_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer Y_ { float y[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };

void main() {
    const uint row = workgroup(), lane = gl_LocalInvocationID.x, step = gl_WorkGroupSize.x;
    if (row >= outer * inner) return;
    const uint first = row / inner * length * inner + row % inner;
    const uint y_0 = y_at + first, g_0 = g_at + first, out_0 = out_at + first;
    float share = 0.0;
    for (uint k = lane; k < length; k += step) share += y[y_0 + k * inner] * g[g_0 + k * inner];
    const float total = workgroup_sum(share);
    for (uint k = lane; k < length; k += step)
        out_[out_0 + k * inner] = y[y_0 + k * inner] * (g[g_0 + k * inner] - total);
}
