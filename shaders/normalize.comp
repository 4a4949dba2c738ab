// normalize: out = gamma (x - mean) / deviation + beta, all but x and out per row
// out, x [rows, length]; mean, variance, gamma, beta [rows, 1]
// grid: n / turns invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "turns.glsl"
#include "quotient.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint n, by_length[2], out_at, x_at, gamma_at, beta_at, mean_at, variance_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer Gamma_ { float gamma[]; };
layout(set = 0, binding = 3) readonly buffer Beta_ { float beta[]; };
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn), row = quotient(i, by_length[0], by_length[1]);
        if (i >= n) return;
        const float rate = rate_of(variance[variance_at + row], eps);
        out_[out_at + i] = (x[x_at + i] - mean[mean_at + row]) * rate * gamma[gamma_at + row] + beta[beta_at + row];
    }
}
