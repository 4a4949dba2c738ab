// batch_norm_grad: dx = gamma rate (g - dbeta / length - h dgamma / length) with h = rate (x - mean)
// dx, x, g [rows, length]; gamma, mean, variance, dgamma, dbeta [rows, 1], the last two from norm_sums
// grid: n / turns invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "turns.glsl"
#include "quotient.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint n, length, by_length[2], dx_at, x_at, g_at, gamma_at, mean_at, variance_at, dgamma_at, dbeta_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 3) readonly buffer Gamma_ { float gamma[]; };
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };
layout(set = 0, binding = 6) readonly buffer Dgamma_ { float dgamma[]; };
layout(set = 0, binding = 7) readonly buffer Dbeta_ { float dbeta[]; };

void main() {
    const float share = 1.0 / float(length);
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn), row = quotient(i, by_length[0], by_length[1]);
        if (i >= n) return;
        const float rate = rate_of(variance[variance_at + row], eps);
        const float h = (x[x_at + i] - mean[mean_at + row]) * rate;
        const float apart = g[g_at + i] - share * dbeta[dbeta_at + row] - h * (share * dgamma[dgamma_at + row]);
        dx[dx_at + i] = gamma[gamma_at + row] * rate * apart;
    }
}
