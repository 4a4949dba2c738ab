// flat_ids: out[k] = before[k] * length + ids[k], the place in an array of two axes; a negative id counts from the end
// out[n], before[n], ids[n].  What is no place gives 0x7fffffff, also where `before` is none.
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n, length, out_at, before_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer Before_ { uint before[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { int ids[]; };

const uint NO_PLACE = 0x7fffffffu;

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const int id = ids[ids_at + i];
    const uint place = uint(id < 0 ? id + int(length) : id), row = before[before_at + i];
    out_[out_at + i] = place < length && row < NO_PLACE ? row * length + place : NO_PLACE;
}
