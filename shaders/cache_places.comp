// cache_places: out[t, b] = at[b] + i for token i of sample b in a chunk, -1 for padding; then at[b] += lengths[b]
// out[times, batch], at[batch], lengths[batch or 1]; padding is behind the tokens, or before them where `left`
// grid: batch invocations
// turns: times of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint batch, times, left, length_step, out_at, at_at, lengths_at; };
layout(set = 0, binding = 0) buffer Out_ { int out_[]; };
layout(set = 0, binding = 1) buffer At_ { int at[]; };
layout(set = 0, binding = 2) readonly buffer Lengths_ { int lengths[]; };

void main() {
    const uint b = invocation();
    if (b >= batch) return;
    const int begin = at[at_at + b], length = lengths[lengths_at + b * length_step];
    const int first = left != 0 ? int(times) - length : 0;
    for (uint t = 0; t < times; t++) {
        const int token = int(t) - first;
        out_[out_at + t * batch + b] = token >= 0 && token < length ? begin + token : -1;
    }
    at[at_at + b] = begin + length;
}
