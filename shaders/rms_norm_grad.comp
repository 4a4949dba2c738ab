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
layout(set = 0, binding = 0) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 3) readonly buffer Gamma_ { float gamma[]; };
layout(set = 0, binding = 4) readonly buffer Square_ { float square[]; };
// The same products both times: their difference is exact.
#define LOAD EACH(i) { \
    const uint f = place(k, i, end); \
    precise float s = g[g_at + f * samples + column] * gamma[gamma_at + f], h = x[x_at + f * samples + column] * rate; \
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
            dx[dx_at + k * samples + column + i * (shares * samples)] = (slopes[i] - scaled[i] * along) * rate;
    } AGAIN;
}
