// normalize: out = gamma (x - mean) / deviation + beta, all but x and out per row
// out, x [rows, length]; mean, variance, gamma, beta [rows, 1]
// grid: n / turns invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "turns.glsl"
#include "quotient.glsl"
#include "rate.glsl"
#include "numbers.glsl"

layout(push_constant) uniform Args {
    uint n, by_length[2], out_at, x_at, gamma_at, beta_at, mean_at, variance_at;
    float eps;
};
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)
NUMBERS(2, readonly, Gamma, gamma)
NUMBERS(3, readonly, Beta, beta)
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };

void main() {
    uint word;
    for (uint turn = 0; turn < turns * IN_A_ROW(3u); turn++) {
        const uint i = PLACE(turn, 3u), row = quotient(i, by_length[0], by_length[1]);
        if (i >= n) return;
        const float h = (NUMBER(x, 1, x_at, i) - mean[mean_at + row]) * rate_of(variance[variance_at + row], eps);
        PUT(out_, 0, out_at, i, n, h * NUMBER(gamma, 2, gamma_at, row) + NUMBER(beta, 3, beta_at, row), word)
    }
}
