// rms_norm_grad: dx = rate (s - h mean(s h)) with s = gamma g, h = rate x, the mean over each column
// dx, x, g [features, samples]; gamma [features, 1]; square [1, samples], the means of the squares of x
// grid: samples / 8 workgroups
// turns: 2 * features / 16 of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
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

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    const uint x_0 = x_at + column, g_0 = g_at + column;
    const float rate = column < samples ? rate_of(square[square_at + column], eps) : 0.0;
    float along = 0.0;
    FOURS(k, share, end) {
        float slopes[FOUR], scaled[FOUR];
        EACH(i) {
            const uint f = place(k, i, end);
            precise float s = g[g_0 + f * samples] * gamma[gamma_at + f];
            slopes[i] = s;
            precise float h = x[x_0 + f * samples] * rate;
            scaled[i] = h;
        }
        EACH(i) along += within(k, i, end) ? slopes[i] * scaled[i] : 0.0;
    }
    along = column_sum(0, along, samples) / float(features);
    FOURS(k, share, end) {
        float some[FOUR];
        EACH(i) {
            const uint f = place(k, i, end);
            precise float s = g[g_0 + f * samples] * gamma[gamma_at + f], h = x[x_0 + f * samples] * rate;  // as above
            some[i] = (s - h * along) * rate;
        }
        EACH(i) if (within(k, i, end)) dx[dx_at + column + (k + i * shares) * samples] = some[i];
    }
}
