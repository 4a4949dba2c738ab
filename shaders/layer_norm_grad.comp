// layer_norm_grad: dx = rate (s - mean(s) - h mean(s h)) with s = gamma g, h = rate (x - mean), means over each column
// dx, x, g [features, samples]; gamma [features, 1]; mean, variance [1, samples]
// grid: samples / 8 workgroups
// turns: 2 * features / 16 of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint features, samples, dx_at, x_at, g_at, gamma_at, mean_at, variance_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 3) readonly buffer Gamma_ { float gamma[]; };
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };

void main() {
    const uint column = column_of(samples), share = share_of(samples);
    const bool valid = column < samples;
    const uint end = valid ? features : 0, x_0 = x_at + column, g_0 = g_at + column;
    const float centre = valid ? mean[mean_at + column] : 0.0;
    const float rate = valid ? rate_of(variance[variance_at + column], eps) : 0.0;
    float sum = 0.0, along = 0.0;
    FOURS(k, share, end) {
        float slopes[FOUR], apart[FOUR];
        EACH(i) {
            const uint f = place(k, i, end);
            precise float s = g[g_0 + f * samples] * gamma[gamma_at + f];
            slopes[i] = s;
            apart[i] = x[x_0 + f * samples];
        }
        EACH(i) {
            const bool counts = within(k, i, end);
            const float s = counts ? slopes[i] : 0.0, h = counts ? (apart[i] - centre) * rate : 0.0;
            sum += s;
            along += s * h;
        }
    }
    sum = column_sum(0, sum, samples) / float(features);
    along = column_sum(1, along, samples) / float(features);
    FOURS(k, share, end) {
        float some[FOUR];
        EACH(i) {
            const uint f = place(k, i, end);
            const float h = (x[x_0 + f * samples] - centre) * rate;
            precise float s = g[g_0 + f * samples] * gamma[gamma_at + f];  // the same as above: an exact difference
            some[i] = (s - sum - h * along) * rate;
        }
        EACH(i) if (within(k, i, end)) dx[dx_at + column + (k + i * shares) * samples] = some[i];
    }
}
