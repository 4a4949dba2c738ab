// A convolution, an element of the result at a time.
#include "epilogue_args.glsl"
#define OPERANDS out_at, x_at, w_at
#define PARAMS uint channels, features, by_features[2]; EPILOGUE
#define GRID places
#ifdef CHAIN
#define WINDOW 10
#endif
#include "index.glsl"
#include "window.glsl"

layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer W_ { float w[]; };
#ifdef CHAIN
#define COLS plane(places)
#include "epilogue.glsl"
#endif

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint group = quotient(e.channel, by_features[0], by_features[1]);
    const uint x_step = plane(image), w_step = kernel_0 * kernel_1;
    const uint x_0 = x_at + group * channels * x_step + e.b;
    const uint w_0 = w_at + e.channel * channels * w_step;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = pixel(0, e.y, down);
        if (y >= image[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x_ = pixel(1, e.x, across);
            if (x_ >= image[1]) continue;
            uint x_i = x_0 + (y * image[1] + x_) * batch, w_i = w_0 + down * kernel_1 + across;
            for (uint c = 0; c < channels; c++, x_i += x_step, w_i += w_step) total += w[w_i] * x[x_i];
        }
    }
#ifdef CHAIN
    total = chained(e.channel, i - e.channel * plane(places), total);
#endif
    out_[out_at + i] = total;
}
