// take: out[o, p, i] = x[o, id, i], where id is ids[o, p, i], in steps that are 0 along axes which share ids
// out[outer, places, inner], x[outer, length, inner]; words are moved as integers
// With `wraps` a negative id counts from the end.  0x80000000 gives 0, others that are no place give NaN.
// grid: outer * places * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "moves.glsl"

layout(push_constant) uniform Args {
    uint outer, length, inner, places, step_outer, step_place, step_inner, wraps, out_at, x_at, ids_at;
};
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };  // a negative id is a large one
#include "ids.glsl"

uint from(uint n) {
    const uint i = n % inner, p = n / inner % places, o = n / inner / places;
    const uint id = id_at(o * step_outer + p * step_place + i * step_inner);
    return id < length ? (o * length + id) * inner + i : id == NOTHING ? STAYS_0 : NO_PLACE;
}

void main() { move_to(out_at, x_at, outer * places * inner); }
