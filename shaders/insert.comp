// insert: whole[o, start + k, i] = x[o, k, i], the rest stays; words are moved as integers
// whole[outer, length, inner], x[outer, count, inner]
// grid: outer * count * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "move_alone.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start, whole_at, x_at; };
NUMBERS(0, , Whole, whole)
NUMBERS(1, readonly, X, x)

void main() {
    const uint n = invocation(), i = n % inner, k = n / inner % count, o = n / inner / count;
    if (o >= outer) return;
    const uint at = (o * length + start + k) * inner + i;
    MOVE_ALONE(whole, whole_at, at, x, x_at, n)
}
