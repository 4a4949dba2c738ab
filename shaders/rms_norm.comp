// rms_norm: out = gamma x / root, with the root of the mean of the squares of each column, which is square
// out, x [features, samples]; square [1, samples]; gamma [features, 1]
// grid: samples / columns workgroups
// turns: 2 * features / shares of an invocation's loops
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "columns.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint features, samples, out_at, square_at, x_at, gamma_at;
    float eps;
};
NUMBERS(0, , Out, out_)
layout(set = 0, binding = 1) buffer Square_ { float square[]; };
NUMBERS(2, readonly, X, x)
NUMBERS(3, readonly, Gamma, gamma)
#define LOAD EACH(i) some[i] = NUMBER(x, 2, x_at, place(k, i, end) * samples + column)

void main() {
    const uint column = column_of(samples), share = share_of(samples), end = column < samples ? features : 0;
    float some[loads], mine = 0.0;
    {
        PASS {
            LOAD;
            float part = 0.0;
            EACH(i) part += within(k, i, end) ? some[i] * some[i] : 0.0;
            mine += part;
        } AGAIN;
    }
    const float mean = column_sum(0, mine, samples) / float(features), rate = rate_of(mean, eps);
    PASS {
        if (whole == 0) LOAD;
        EACH(i) some[i] = some[i] * rate * NUMBER(gamma, 3, gamma_at, place(k, i, end));
        EACH(i) if (within(k, i, end))
            PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + k * samples + column + i * (shares * samples), some[i])
    } AGAIN;
    if (share == 0 && column < samples) square[square_at + column] = mean;
}
