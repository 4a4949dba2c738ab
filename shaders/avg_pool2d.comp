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

layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint x_0 = x_at + e.channel * plane(image) + e.b;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = pixel(0, e.y, down);
        if (y >= image[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x_ = pixel(1, e.x, across);
            if (x_ < image[1]) total += x[x_0 + (y * image[1] + x_) * batch];
        }
    }
    out_[out_at + i] = total / float(kernel_0 * kernel_1);
}
