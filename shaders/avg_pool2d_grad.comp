// avg_pool2d_grad: out = sum of g over the windows that see the pixel / their number of taps
// out[channels, image, batch], g[channels, places, batch]
// grid: n invocations
// work: n * taps * 6 operations
#version 440
#extension GL_GOOGLE_include_directive : require
#define OPERANDS out_at, g_at
#define GRID image
#include "index.glsl"
#include "window.glsl"
#define TYPES 8
#include "numbers.glsl"

NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, G, g)

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint g_0 = e.channel * plane(places) + e.b;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = place(0, e.y, down);
        if (y >= places[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x = place(1, e.x, across);
            if (x < places[1]) total += NUMBER(g, 1, g_at, g_0 + (y * places[1] + x) * batch);
        }
    }
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + i, total / float(kernel_0 * kernel_1))
}
