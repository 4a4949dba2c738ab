// log_softmax_columns: out = z - log(sum of exp(z)) with z = x - max x, per column.  out, x [classes, batch]
// grid: batch / 8 workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "ieee.glsl"

layout(push_constant) uniform Args { uint classes, batch, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint column = column_of(batch), share = share_of(batch);
    const uint end = column < batch ? classes : 0;
    float mine = -INFINITY;
    for (uint c = share; c < end; c += SHARES) mine = max(mine, x[x_at + c * batch + column]);
    const float largest = column_max(0, mine, batch);
    mine = 0.0;
    for (uint c = share; c < end; c += SHARES) mine += ieee_exp(x[x_at + c * batch + column] - largest);
    const float log_total = ieee_log(column_sum(1, mine, batch));
    for (uint c = share; c < end; c += SHARES)
        out_[out_at + c * batch + column] = x[x_at + c * batch + column] - largest - log_total;
}
