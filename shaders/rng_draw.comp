// rng_draw: out = state, then the stream number, words 2 and 3 of the state, grows by 1.
// out[4], state[4]: seed low, seed high, stream low, stream high
// grid: 1 invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint out_at, state_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) buffer State_ { uint state[]; };

void main() {
    if (invocation() != 0) return;
    for (uint word = 0; word < 4; word++) out_[out_at + word] = state[state_at + word];
    uint carry;
    state[state_at + 2] = uaddCarry(state[state_at + 2], 1, carry);
    state[state_at + 3] += carry;
}
