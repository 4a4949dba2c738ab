// attention_delta: delta = sum of y g over the features of each head; delta [heads, rest], y, g [heads, features, rest]
// grid: heads * rest invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#define TYPES 0
#include "numbers.glsl"

layout(push_constant) uniform Args { uint heads, features, rest, delta_at, y_at, g_at; };
layout(set = 0, binding = 0) buffer Delta_ { float delta[]; };
NUMBERS(1, readonly, Y, y)
NUMBERS(2, readonly, G, g)

void main() {
    const uint i = invocation();
    if (i >= heads * rest) return;
    const uint first = i / rest * features * rest + i % rest;
    float total = 0.0;
    for (uint f = 0; f < features; f++)
        total += NUMBER(y, 1, y_at, first + f * rest) * NUMBER(g, 2, g_at, first + f * rest);
    delta[delta_at + i] = total;
}
