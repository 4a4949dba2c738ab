// part: out[o, k, i] = x[o, start + k step, i]; words are moved as integers
// out[outer, count, inner], x[outer, length, inner]
// grid: outer * count * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "moves.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start; int step; uint out_at, x_at; };

uint from(uint n) {
    const uint i = n % inner, k = n / inner % count, o = n / inner / count;
    return (o * length + uint(int(start) + int(k) * step)) * inner + i;
}

void main() { move_to(out_at, x_at, outer * count * inner); }
