// insert: whole[o, start + k, i] = x[o, k, i], the rest stays; words are moved as integers
// whole[outer, length, inner], x[outer, count, inner]
// grid: outer * count * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start, whole_at, x_at; };
layout(set = 0, binding = 0) buffer Whole_ { uint whole[]; };
layout(set = 0, binding = 1) readonly buffer X_ { uint x[]; };

void main() {
    const uint n = invocation(), i = n % inner, k = n / inner % count, o = n / inner / count;
    if (o < outer) whole[whole_at + (o * length + start + k) * inner + i] = x[x_at + n];
}
