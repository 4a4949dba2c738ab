// gather_columns: out[d, p] = weight[d, ids[p]].  out[dim, places], weight[dim, vocab], ids[places]
// An id that is no column gives NaN.
// grid: dim * places invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "ieee.glsl"

layout(push_constant) uniform Args { uint dim, vocab, places, out_at, weight_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer Weight_ { float weight[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };  // a negative id is a large one

void main() {
    const uint i = invocation();
    if (i >= dim * places) return;
    const uint id = ids[ids_at + i % places];
    out_[out_at + i] = id < vocab ? weight[weight_at + i / places * vocab + id] : NOT_A_NUMBER;
}
