// layer_norm: out = gamma (x - mean) / deviation + beta, with mean and variance of each column
// out, x [features, samples]; mean, variance [1, samples]; gamma, beta [features, 1]
// grid: samples / 8 workgroups
// turns: 3 * features / 16 of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint features, samples, out_at, mean_at, variance_at, x_at, gamma_at, beta_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) buffer Mean_ { float mean[]; };
layout(set = 0, binding = 2) buffer Variance_ { float variance[]; };
layout(set = 0, binding = 3) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 4) readonly buffer Gamma_ { float gamma[]; };
layout(set = 0, binding = 5) readonly buffer Beta_ { float beta[]; };

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    const uint x_0 = x_at + column, out_0 = out_at + column;
    float mine = 0.0;
    FOURS(f, share, end) {
        float some[FOUR];
        EACH(i) some[i] = x[x_0 + place(f, i, end) * samples];
        EACH(i) mine += within(f, i, end) ? some[i] : 0.0;
    }
    const float centre = column_sum(0, mine, samples) / float(features);
    mine = 0.0;
    FOURS(f, share, end) {
        float some[FOUR];
        EACH(i) some[i] = x[x_0 + place(f, i, end) * samples];
        EACH(i) {
            const float apart = within(f, i, end) ? some[i] - centre : 0.0;
            mine += apart * apart;
        }
    }
    const float spread = column_sum(1, mine, samples) / float(features), rate = rate_of(spread, eps);
    FOURS(k, share, end) {
        float some[FOUR];
        EACH(i) {
            const uint f = place(k, i, end);
            some[i] = (x[x_0 + f * samples] - centre) * rate * gamma[gamma_at + f] + beta[beta_at + f];
        }
        EACH(i) if (within(k, i, end)) out_[out_0 + (k + i * shares) * samples] = some[i];
    }
    if (share != 0 || column >= samples) return;
    mean[mean_at + column] = centre;
    variance[variance_at + column] = spread;
}
