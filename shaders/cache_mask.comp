// cache_mask: out[t, c, b] = 1 if c <= max(places[t, b], 0), else 0.  out[times, capacity, batch], places[times, batch]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n, capacity, batch, out_at, places_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer Places_ { int places[]; };

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const uint row = i / batch, token = row / capacity * batch + i % batch;
    out_[out_at + i] = int(row % capacity) <= max(places[places_at + token], 0) ? 1.0 : 0.0;
}
