// A convolution's gradient by its input, an element at a time.
#include "epilogue_args.glsl"
#define OPERANDS out_at, w_at, g_at
#define PARAMS uint channels, features; EPILOGUE
#include "index.glsl"
#include "window.glsl"

layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer W_ { float w[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };
#ifdef CHAIN
#define COLS plane(image)
#include "epilogue.glsl"
#endif

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i, image);
    const uint g_step = plane(places), taps = kernel[0] * kernel[1], w_step = channels * taps;
    const uint first = e.channel / channels * features;  // of the group
    const uint g_0 = g_at + first * g_step + e.b;
    const uint w_0 = w_at + first * w_step + e.channel % channels * taps;
    float total = 0.0;
    for (uint down = 0; down < kernel[0]; down++) {
        const uint y = place(0, e.y, down);
        if (y >= places[0]) continue;
        for (uint across = 0; across < kernel[1]; across++) {
            const uint x = place(1, e.x, across);
            if (x >= places[1]) continue;
            const uint g_i = g_0 + (y * places[1] + x) * batch, w_i = w_0 + down * kernel[1] + across;
            for (uint f = 0; f < features; f++) total += w[w_i + f * w_step] * g[g_i + f * g_step];
        }
    }
#ifdef CHAIN
    total = chained(e.channel, i % plane(image), total);
#endif
    out_[out_at + i] = total;
}
