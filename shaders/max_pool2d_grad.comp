// max_pool2d_grad: out = sum of g over the windows whose maximum the pixel is
// out[channels, image, batch]; tap, g [channels, places, batch]
// grid: n invocations
// work: n * taps * 8 operations
#version 440
#extension GL_GOOGLE_include_directive : require
#define OPERANDS out_at, tap_at, g_at
#define GRID image
#include "index.glsl"
#include "window.glsl"
#define TYPES 8
#include "numbers.glsl"

NUMBERS(0, , Out, out_)
layout(set = 0, binding = 1) readonly buffer Tap_ { float tap[]; };
NUMBERS(2, readonly, G, g)

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint first = e.channel * plane(places) + e.b;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = place(0, e.y, down);
        if (y >= places[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x = place(1, e.x, across);
            if (x >= places[1]) continue;
            const uint window = first + (y * places[1] + x) * batch;
            if (tap[tap_at + window] == float(down * kernel_1 + across)) total += NUMBER(g, 2, g_at, window);
        }
    }
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + i, total)
}
