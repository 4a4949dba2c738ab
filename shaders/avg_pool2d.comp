// avg_pool2d: out = sum of the pixels that a window sees / its number of taps
// out[channels, places, batch], x[channels, image, batch]
// grid: n invocations
// work: n * taps operations
#version 440
#extension GL_GOOGLE_include_directive : require
#define OPERANDS out_at, x_at
#define GRID places
#include "index.glsl"
#include "window.glsl"
#define TYPES 8
#include "numbers.glsl"

NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint x_0 = e.channel * plane(image) + e.b;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = pixel(0, e.y, down);
        if (y >= image[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x_ = pixel(1, e.x, across);
            if (x_ < image[1]) total += NUMBER(x, 1, x_at, x_0 + (y * image[1] + x_) * batch);
        }
    }
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + i, total / float(kernel_0 * kernel_1))
}
