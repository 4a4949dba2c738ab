// scatter_columns: out[d, v] = sum of g[d, p] over the places p from first to last with ids[p] = v, in their order
// out[dim, vocab], g[dim, places], ids[places]; one invocation per element of out, so no atomics
// grid: dim * vocab invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint dim, places, vocab, first, last, out_at, g_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };

void main() {
    const uint i = invocation();
    if (i >= dim * vocab) return;
    const uint word = i % vocab, row = g_at + i / vocab * places;
    float total = 0.0;
    for (uint p = first; p < last; p++)
        if (ids[ids_at + p] == word) total += g[row + p];
    out_[out_at + i] = total;
}
