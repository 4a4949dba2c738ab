// part: out[o, k, i] = x[o, start + k step, i]; words are moved as integers
// out[outer, count, inner], x[outer, length, inner]
// grid: outer * count * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start; int step; uint out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { uint x[]; };

void main() {
    const uint n = invocation(), i = n % inner, k = n / inner % count, o = n / inner / count;
    if (o >= outer) return;
    out_[out_at + n] = x[x_at + (o * length + uint(int(start) + int(k) * step)) * inner + i];
}
