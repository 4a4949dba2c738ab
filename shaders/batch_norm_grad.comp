// batch_norm_grad: dx = gamma rate (g - dbeta / length - h dgamma / length) with h = rate (x - mean)
// dx, x, g [rows, length]; gamma, mean, variance, dgamma, dbeta [rows, 1], the last two from norm_sums
// grid: n / turns invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "turns.glsl"
#include "quotient.glsl"
#include "rate.glsl"
#include "numbers.glsl"

layout(push_constant) uniform Args {
    uint n, length, by_length[2], dx_at, x_at, g_at, gamma_at, mean_at, variance_at, dgamma_at, dbeta_at;
    float eps;
};
NUMBERS(0, , Dx, dx)
NUMBERS(1, readonly, X, x)
NUMBERS(2, readonly, G, g)
NUMBERS(3, readonly, Gamma, gamma)
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };
layout(set = 0, binding = 6) readonly buffer Dgamma_ { float dgamma[]; };
layout(set = 0, binding = 7) readonly buffer Dbeta_ { float dbeta[]; };

void main() {
    const float share = 1.0 / float(length);
    uint word;
    for (uint turn = 0; turn < turns * IN_A_ROW(3u); turn++) {
        const uint i = PLACE(turn, 3u), row = quotient(i, by_length[0], by_length[1]);
        if (i >= n) return;
        const float rate = rate_of(variance[variance_at + row], eps);
        const float h = (NUMBER(x, 1, x_at, i) - mean[mean_at + row]) * rate, slope = NUMBER(g, 2, g_at, i);
        const float apart = slope - share * dbeta[dbeta_at + row] - h * (share * dgamma[dgamma_at + row]);
        PUT(dx, 0, dx_at, i, n, NUMBER(gamma, 3, gamma_at, row) * rate * apart, word)
    }
}
