// out[i] = f of the i-th word of the stream in `key`.  The kernel defines TYPE and f, and may define PARAMS before.
// out[n]; key[4]: seed low, seed high, stream low, stream high.  One block of Philox makes four words.
#include "index.glsl"
#include "philox.glsl"
#ifndef PARAMS
#define PARAMS
#endif

layout(push_constant) uniform Args { uint n, out_at, key_at; PARAMS };
layout(set = 0, binding = 0) buffer Out_ { TYPE out_[]; };
layout(set = 0, binding = 1) readonly buffer Key_ { uint key[]; };

TYPE f(uint bits);

void main() {
    const uint block = invocation();
    if (block >= (n + 3) / 4) return;
    const uvec2 seed = uvec2(key[key_at], key[key_at + 1]), stream = uvec2(key[key_at + 2], key[key_at + 3]);
    const uvec4 bits = philox(seed, uvec4(block, 0, stream));
    for (uint word = 0; word < 4 && 4 * block + word < n; word++) out_[out_at + 4 * block + word] = f(bits[word]);
}
