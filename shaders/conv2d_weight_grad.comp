// conv2d_weight_grad: out[piece, o, channel, tap] = sum over the piece's places and samples of
// g[o, place] x[channel of o's group, pixel]; places and samples are counted together, and a piece is chunk long
// out[pieces, groups * features, channels, kernel], x[groups * channels, image, batch], g[..., places, batch]
// grid: n / 8 workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#define OPERANDS out_at, x_at, g_at
#define PARAMS uint channels, features, chunk, weights;
#include "reduce.glsl"
#include "window.glsl"

layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };

void main() {
    const uint i = column_of(1), share = share_of(1);  // 16 invocations for each element
    const uint across = i % kernel[1], down = i / kernel[1] % kernel[0], c = i / kernel[1] / kernel[0] % channels;
    const uint o = i / kernel[1] / kernel[0] / channels % (weights / channels / kernel[0] / kernel[1]);
    const uint begin = i / weights * chunk, end = i < n ? min(begin + chunk, plane(places)) : 0;
    const uint x_0 = x_at + (o / features * channels + c) * plane(image), g_0 = g_at + o * plane(places);
    float mine = 0.0;
    for (uint k = begin + share; k < end; k += SHARES) {
        const Element e = element(k, places);
        const uint y = pixel(0, e.y, down), x_ = pixel(1, e.x, across);
        if (y < image[0] && x_ < image[1]) mine += g[g_0 + k] * x[x_0 + (y * image[1] + x_) * batch + e.b];
    }
    const float total = column_sum(0, mine, 1);
    if (i < n && share == 0) out_[out_at + i] = total;
}
