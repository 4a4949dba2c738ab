// insert: whole[o, start + k, i] = x[o, k, i], the rest stays; words are moved as integers
// whole[outer, length, inner], x[outer, count, inner]
// grid: outer * count * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#define TYPES 0
#include "numbers.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, count, start, whole_at, x_at; };
NUMBERS(0, , Whole, whole)
NUMBERS(1, readonly, X, x)

void main() {
    const uint n = invocation(), i = n % inner, k = n / inner % count, o = n / inner / count;
    if (o >= outer) return;
    const uint at = (o * length + start + k) * inner + i, right = 16u * (at & 1u), place = whole_at + at / 2u;
    if (TYPE_OF(0) == 0u) wholehalves[whole_at + at] = xhalves[x_at + n];
    else {  // others may set the other half of the word
        const uint moved = xhalves[x_at + n / 2u] >> 16u * (n & 1u) & 0xFFFFu;
        atomicXor(wholehalves[place], moved << right ^ wholehalves[place] & 0xFFFFu << right);
    }
}
