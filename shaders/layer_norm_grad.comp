// layer_norm_grad: dx = rate (s - mean(s) - h mean(s h)) with s = gamma g, h = rate (x - mean), means over each column
// dx, x, g [features, samples]; gamma [features, 1]; mean, variance [1, samples]
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
    uint features, samples, dx_at, x_at, g_at, gamma_at, mean_at, variance_at;
    float eps;
};
NUMBERS(0, , Dx, dx)
NUMBERS(1, readonly, X, x)
NUMBERS(2, readonly, G, g)
NUMBERS(3, readonly, Gamma, gamma)
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };
// The same slopes both times: their difference is exact.
#define LOAD EACH(i) { \
    const uint f = place(k, i, end); \
    precise float s = NUMBER(g, 2, g_at, f * samples + column) * NUMBER(gamma, 3, gamma_at, f); \
    slopes[i] = s; \
    apart[i] = NUMBER(x, 1, x_at, f * samples + column); \
}

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    const bool valid = column < samples;
    const float centre = valid ? mean[mean_at + column] : 0.0;
    const float rate = valid ? rate_of(variance[variance_at + column], eps) : 0.0;
    float slopes[loads], apart[loads], sum = 0.0, along = 0.0;
    {
        PASS {
            LOAD
            vec2 part = vec2(0.0);
            EACH(i) part += within(k, i, end) ? slopes[i] * vec2(1.0, (apart[i] - centre) * rate) : vec2(0.0);
            sum += part.x;
            along += part.y;
        } AGAIN;
    }
    sum = column_sum(0, sum, samples) / float(features);
    along = column_sum(1, along, samples) / float(features);
    PASS {
        if (whole == 0) LOAD
        EACH(i) if (within(k, i, end)) {
            const float h = (apart[i] - centre) * rate;
            PUT_ALONE(dx, 0, FIRST_OF(0, dx_at) + k * samples + column + i * (shares * samples),
                      (slopes[i] - sum - h * along) * rate)
        }
    } AGAIN;
}
