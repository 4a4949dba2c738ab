// spread: out[o, start + k step, i] = x[o, k, i], and 0 in all other places; words are moved as integers
// out[outer, length, inner], x[outer, count, inner]
// grid: outer * length * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "moves.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start; int step; uint out_at, x_at; };

uint from(uint n) {
    const uint i = n % inner, place = n / inner % length, o = n / inner / length;
    const int distance = int(place) - int(start), k = distance / step;
    const bool filled = k * step == distance && k >= 0 && k < int(count);
    return filled ? (o * count + uint(k)) * inner + i : STAYS_0;
}

void main() { move_to(out_at, x_at, outer * length * inner); }
