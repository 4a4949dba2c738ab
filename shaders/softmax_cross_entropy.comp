// softmax_cross_entropy, per column: losses = sum of t (log total - z) with z = x - max x and total = sum of exp(z);
// dx = factor (sum(t) exp(z) / total - t).  losses[1, batch]; dx, x, t [classes, batch]; dx may be x
// grid: batch / columns workgroups
// work: classes * batch * 60 operations
// turns: 2 * classes / shares of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define MOST 16
#include "columns.glsl"

layout(push_constant) uniform Args { uint classes, batch, losses_at, dx_at, x_at, t_at; float factor; };
layout(set = 0, binding = 0) buffer Losses_ { float losses[]; };
NUMBERS(1, , Dx, dx)
NUMBERS(2, readonly, X, x)
NUMBERS(3, readonly, T, t)
#define LOAD EACH(i) { \
    const uint at = place(k, i, end) * batch + column; \
    some[i] = NUMBER(x, 2, x_at, at); \
    targets[i] = NUMBER(t, 3, t_at, at); \
}

void main() {
    const uint column = column_of(batch), share = share_of(batch), end = column < batch ? classes : 0;
    Exponentials mine = NONE;
    float some[loads], targets[loads], weight = 0.0, loss = 0.0;
    {
        PASS {
            LOAD
            include(mine, some, k, end);
            float part = 0.0;
            EACH(i) part += within(k, i, end) ? targets[i] : 0.0;
            weight += part;
        } AGAIN;
    }
    const Exponentials all = column_exponentials(mine, batch);
    const float log_total = ieee_log(all.total), ratio = column_sum(0, weight, batch) / all.total;
    PASS {
        float part = 0.0;
        if (whole == 0) LOAD
        EACH(i) if (within(k, i, end)) {
            const float z = some[i] - all.largest;
            part += targets[i] * (log_total - (targets[i] == 0.0 ? 0.0 : z));  // 0 where z is -inf
            PUT_ALONE(dx, 1, FIRST_OF(1, dx_at) + k * batch + column + i * (shares * batch),
                      factor * (ratio * ieee_exp(z) - targets[i]))
        }
        loss += part;
    } AGAIN;
    loss = column_sum(1, loss, batch);
    if (share == 0 && column < batch) losses[losses_at + column] = loss;
}
