// spread: out[o, start + k step, i] = x[o, k, i], and 0 in all other places; words are moved as integers
// out[outer, length, inner], x[outer, count, inner]
// grid: outer * length * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start; int step; uint out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { uint x[]; };

void main() {
    const uint n = invocation(), i = n % inner, place = n / inner % length, o = n / inner / length;
    if (o >= outer) return;
    const int distance = int(place) - int(start), k = distance / step;
    const bool filled = k * step == distance && k >= 0 && k < int(count);
    out_[out_at + n] = filled ? x[x_at + (o * count + uint(k)) * inner + i] : 0;
}
