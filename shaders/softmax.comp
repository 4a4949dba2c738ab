// softmax: out = exp(x - max x) / (sum of these), along the middle axis.  out, x [outer, length, inner]
// A NaN that max() drops still reaches the sum, and so the whole row.
// grid: outer * inner workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint row = workgroup(), lane = gl_LocalInvocationID.x, step = gl_WorkGroupSize.x;
    if (row >= outer * inner) return;
    const uint first = row / inner * length * inner + row % inner, x_0 = x_at + first, out_0 = out_at + first;
    float share = -INFINITY;
    for (uint k = lane; k < length; k += step) share = max(share, x[x_0 + k * inner]);
    const float largest = workgroup_max(share);
    share = 0.0;
    for (uint k = lane; k < length; k += step) {
        const float e = exp(x[x_0 + k * inner] - largest);
        out_[out_0 + k * inner] = e;
        share += e;
    }
    const float total = workgroup_sum(share);
    for (uint k = lane; k < length; k += step) out_[out_0 + k * inner] /= total;
}
