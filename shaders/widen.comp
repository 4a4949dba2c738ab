// widen: out = x in 32 bits
// out[n], x[n] of 16 bits, two elements to a word
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "half.glsl"

layout(push_constant) uniform Args { uint n, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { uint x[]; };

void main() {
    const uint i = invocation();
    if (i < n) out_[out_at + i] = to_float_bits(x[x_at + i / 2] >> 16 * (i & 1u) & 0xFFFFu);
}
