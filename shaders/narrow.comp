// narrow: out = x rounded to 16 bits; two elements to a word, the second of the last word is 0 if n is odd
// out[n] of 16 bits, x[n], whose words are moved as integers
// grid: n / 2 invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "half.glsl"

layout(push_constant) uniform Args { uint n, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { uint x[]; };

void main() {
    const uint word = invocation(), i = 2 * word;
    if (i >= n) return;
    const uint second = i + 1 < n ? to_half_bits(x[x_at + i + 1]) : 0;
    out_[out_at + word] = to_half_bits(x[x_at + i]) | second << 16;
}
