// reconcile: where master does not round to x, master = x
// master[n]; x[n] of 16 bits, two elements to a word
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "half.glsl"

layout(push_constant) uniform Args { uint n, master_at, x_at; };
layout(set = 0, binding = 0) buffer Master_ { uint master[]; };
layout(set = 0, binding = 1) readonly buffer X_ { uint x[]; };

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const uint h = x[x_at + i / 2] >> 16 * (i & 1u) & 0xFFFFu;
    if (to_half_bits(master[master_at + i]) != h) master[master_at + i] = to_float_bits(h);
}
