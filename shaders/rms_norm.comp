// rms_norm: out = gamma x / root, with the root of the mean of the squares of each column, which is square
// out, x [features, samples]; square [1, samples]; gamma [features, 1]
// grid: samples / 8 workgroups
// turns: 2 * features / 16 of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint features, samples, out_at, square_at, x_at, gamma_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) buffer Square_ { float square[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer Gamma_ { float gamma[]; };

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    const uint x_0 = x_at + column, out_0 = out_at + column;
    float mine = 0.0;
    FOURS(f, share, end) {
        float some[FOUR];
        EACH(i) some[i] = x[x_0 + place(f, i, end) * samples];
        EACH(i) mine += within(f, i, end) ? some[i] * some[i] : 0.0;
    }
    const float mean = column_sum(0, mine, samples) / float(features), rate = rate_of(mean, eps);
    FOURS(k, share, end) {
        float some[FOUR];
        EACH(i) {
            const uint f = place(k, i, end);
            some[i] = x[x_0 + f * samples] * rate * gamma[gamma_at + f];
        }
        EACH(i) if (within(k, i, end)) out_[out_0 + (k + i * shares) * samples] = some[i];
    }
    if (share == 0 && column < samples) square[square_at + column] = mean;
}
