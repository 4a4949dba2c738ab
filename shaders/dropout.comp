// dropout: out = x / (1 - rate) where u >= rate, else 0 x; u[i] is the i-th uniform number of the stream in `key`.
// out[n], x[n]; key[4]: seed low, seed high, stream low, stream high.  One block of Philox makes four numbers.
// grid: n / 4 invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "philox.glsl"
#define TYPES 0
#include "numbers.glsl"

layout(push_constant) uniform Args { uint n, out_at, x_at, key_at; float rate; };
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)
layout(set = 0, binding = 2) readonly buffer Key_ { uint key[]; };

void main() {
    const uint block = invocation();
    if (block >= (n + 3) / 4) return;
    const uvec2 seed = uvec2(key[key_at], key[key_at + 1]), stream = uvec2(key[key_at + 2], key[key_at + 3]);
    const vec4 u = uniform_from_bits(philox(seed, uvec4(block, 0, stream)));
    const float kept = 1.0 / (1.0 - rate);
    uint word;
    for (uint k = 0; k < 4 && 4 * block + k < n; k++) {
        const uint i = 4 * block + k;
        PUT(out_, 0, out_at, i, n, NUMBER(x, 1, x_at, i) * (u[k] >= rate ? kept : 0.0), word)
    }
}
