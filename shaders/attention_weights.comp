// attention_weights: out = softmax(factor x) along the last axis; if causal, query i sees the keys 0..i and no others
// out, x [batch, queries, keys].  A NaN that max() drops still reaches the sum, and so the whole row.
// grid: batch * queries / 8 workgroups
// turns: 3 * keys / 16 of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "ieee.glsl"

layout(push_constant) uniform Args { uint batch, queries, keys, out_at, x_at; float factor; uint causal; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint row = column_of(1), share = share_of(1);
    const uint x_0 = x_at + row * keys, out_0 = out_at + row * keys;
    const uint end = row >= batch * queries ? 0 : keys, seen = causal != 0 ? min(end, row % queries + 1) : end;
    float mine = -INFINITY;
    for (uint k = share; k < seen; k += shares) mine = max(mine, factor * x[x_0 + k]);
    const float largest = column_max(0, mine, 1);
    mine = 0.0;
    for (uint k = share; k < seen; k += shares) mine += ieee_exp(factor * x[x_0 + k] - largest);
    const float total = column_sum(1, mine, 1);
    for (uint k = share; k < end; k += shares)
        out_[out_0 + k] = k < seen ? ieee_exp(factor * x[x_0 + k] - largest) / total : 0.0;
}
