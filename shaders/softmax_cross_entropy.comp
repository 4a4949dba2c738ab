// softmax_cross_entropy, per column: losses = sum of t (log total - z) with z = x - max x and total = sum of exp(z);
// dx = factor (sum(t) exp(z) / total - t).  losses[1, batch]; dx, x, t [classes, batch]
// grid: batch / 8 workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"
#include "ieee.glsl"

layout(push_constant) uniform Args { uint classes, batch, losses_at, dx_at, x_at, t_at; float factor; };
layout(set = 0, binding = 0) buffer Losses_ { float losses[]; };
layout(set = 0, binding = 1) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer T_ { float t[]; };

void main() {
    const uint column = column_of(batch), share = share_of(batch);
    const uint end = column < batch ? classes : 0;
    float mine = -INFINITY, my_weight = 0.0;
    for (uint c = share; c < end; c += SHARES) {
        mine = max(mine, x[x_at + c * batch + column]);
        my_weight += t[t_at + c * batch + column];
    }
    const float largest = column_max(0, mine, batch), weight = column_sum(1, my_weight, batch);
    mine = 0.0;
    for (uint c = share; c < end; c += SHARES) mine += ieee_exp(x[x_at + c * batch + column] - largest);
    const float total = column_sum(2, mine, batch), log_total = ieee_log(total), ratio = weight / total;
    mine = 0.0;
    for (uint c = share; c < end; c += SHARES) {
        const float z = x[x_at + c * batch + column] - largest, target = t[t_at + c * batch + column];
        mine += target * (log_total - z);
        dx[dx_at + c * batch + column] = factor * (ratio * ieee_exp(z) - target);
    }
    const float loss = column_sum(3, mine, batch);
    if (share == 0 && column < batch) losses[losses_at + column] = loss;
}
