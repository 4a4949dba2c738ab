// without: out = ids, but 0x80000000, which stands for nothing, in the place of the id `ignore`
// out[n], ids[n]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n, out_at, ids_at; int ignore; };
layout(set = 0, binding = 0) buffer Out_ { int out_[]; };
layout(set = 0, binding = 1) readonly buffer Ids_ { int ids[]; };

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const int id = ids[ids_at + i];
    out_[out_at + i] = id == ignore ? int(0x80000000u) : id;
}
