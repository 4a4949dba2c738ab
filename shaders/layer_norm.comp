// layer_norm: out = gamma (x - mean) / deviation + beta, with mean and variance of each column
// out, x [features, samples]; mean, variance [1, samples]; gamma, beta [features, 1]
// grid: samples / columns workgroups
// turns: 2 * features / shares of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "columns.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint features, samples, out_at, mean_at, variance_at, x_at, gamma_at, beta_at;
    float eps;
};
NUMBERS(0, , Out, out_)
layout(set = 0, binding = 1) buffer Mean_ { float mean[]; };
layout(set = 0, binding = 2) buffer Variance_ { float variance[]; };
NUMBERS(3, readonly, X, x)
NUMBERS(4, readonly, Gamma, gamma)
NUMBERS(5, readonly, Beta, beta)
#define LOAD EACH(i) some[i] = NUMBER(x, 3, x_at, place(k, i, end) * samples + column)

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    const float origin = whole == 0 && end > 0 ? NUMBER(x, 3, x_at, column) : 0.0;
    float some[loads];
    Moments mine = Moments(0.0, 0.0, 0.0);
    {
        PASS {
            LOAD;
            include(mine, some, origin, k, end);
        } AGAIN;
    }
    const Moments all = column_moments(mine, some, origin, share, end, features, samples);
    const float rate = rate_of(all.apart, eps);
    PASS {
        if (whole == 0) LOAD;
        EACH(i) {
            const uint f = place(k, i, end);
            some[i] = (some[i] - all.mean) * rate * NUMBER(gamma, 4, gamma_at, f) + NUMBER(beta, 5, beta_at, f);
        }
        EACH(i) if (within(k, i, end))
            PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + k * samples + column + i * (shares * samples), some[i])
    } AGAIN;
    if (share != 0 || column >= samples) return;
    mean[mean_at + column] = all.mean;
    variance[variance_at + column] = all.apart;
}
