// max_pool2d: out = the largest pixel that a window sees; tap = the first tap, row by row, that sees it.  NaN is larger
// than any number.  out, tap [channels, places, batch], x[channels, image, batch]
// grid: n invocations
// work: n * taps * 4 operations
#version 440
#extension GL_GOOGLE_include_directive : require
#define OPERANDS out_at, tap_at, x_at
#define GRID places
#include "index.glsl"
#include "window.glsl"
#define TYPES 8
#include "numbers.glsl"

NUMBERS(0, , Out, out_)
layout(set = 0, binding = 1) buffer Tap_ { float tap[]; };
NUMBERS(2, readonly, X, x)

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint x_0 = e.channel * plane(image) + e.b;
    float best = 0.0;
    int best_tap = -1;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = pixel(0, e.y, down);
        if (y >= image[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x_ = pixel(1, e.x, across);
            if (x_ >= image[1]) continue;
            const float seen = NUMBER(x, 2, x_at, x_0 + (y * image[1] + x_) * batch);
            if (best_tap < 0 || seen > best || (isnan(seen) && !isnan(best))) {
                best = seen;
                best_tap = int(down * kernel_1 + across);
            }
        }
    }
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + i, best)
    tap[tap_at + i] = float(best_tap);
}
