// rms_norm_grad: dx = rate (s - h mean(s h)) with s = gamma g, h = rate x, the mean over each column
// dx, x, g [features, samples]; gamma [features, 1]; square [1, samples], the means of the squares of x
// grid: samples / columns workgroups
// turns: 2 * features / shares of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define MOST 16
#include "columns.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint features, samples, dx_at, x_at, g_at, gamma_at, square_at;
    float eps;
};
NUMBERS(0, , Dx, dx)
NUMBERS(1, readonly, X, x)
NUMBERS(2, readonly, G, g)
NUMBERS(3, readonly, Gamma, gamma)
layout(set = 0, binding = 4) readonly buffer Square_ { float square[]; };
// The same products both times: their difference is exact.
#define LOAD EACH(i) { \
    const uint f = place(k, i, end); \
    precise float s = NUMBER(g, 2, g_at, f * samples + column) * NUMBER(gamma, 3, gamma_at, f); \
    precise float h = NUMBER(x, 1, x_at, f * samples + column) * rate; \
    slopes[i] = s; \
    scaled[i] = h; \
}

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    const float rate = column < samples ? rate_of(square[square_at + column], eps) : 0.0;
    float slopes[loads], scaled[loads], along = 0.0;
    {
        PASS {
            LOAD
            float part = 0.0;
            EACH(i) part += within(k, i, end) ? slopes[i] * scaled[i] : 0.0;
            along += part;
        } AGAIN;
    }
    along = column_sum(0, along, samples) / float(features);
    PASS {
        if (whole == 0) LOAD
        EACH(i) if (within(k, i, end))
            PUT_ALONE(dx, 0, FIRST_OF(0, dx_at) + k * samples + column + i * (shares * samples),
                      (slopes[i] - scaled[i] * along) * rate)
    } AGAIN;
}
