// sequence: out[k] = first + k step, whole numbers.  out[n], first[1]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n; int step; uint out_at, first_at; };
layout(set = 0, binding = 0) buffer Out_ { int out_[]; };
layout(set = 0, binding = 1) readonly buffer First_ { int first[]; };

void main() {
    const uint i = invocation();
    if (i < n) out_[out_at + i] = first[first_at] + int(i) * step;
}
