// softmax_cross_entropy, per column: losses = sum of t (log total - z) with z = x - max x and total = sum of exp(z);
// dx = factor (sum(t) exp(z) / total - t).  losses[1, batch]; dx, x, t [classes, batch]; dx may be x
// grid: batch / columns workgroups
// work: classes * batch * 60 operations
// turns: 2 * classes / shares of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "columns.glsl"

layout(push_constant) uniform Args { uint classes, batch, losses_at, dx_at, x_at, t_at; float factor; };
layout(set = 0, binding = 0) buffer Losses_ { float losses[]; };
layout(set = 0, binding = 1) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer T_ { float t[]; };

void main() {
    const uint column = column_of(batch), share = share_of(batch);
    const uint end = column < batch ? classes : 0;
    Exponentials mine = NONE;
    float my_weight = 0.0, my_loss = 0.0;
    FOURS(c, share, end) {
        float some[FOUR], targets[FOUR];
        EACH(i) {
            const uint at = place(c, i, end) * batch + column;
            some[i] = x[x_at + at];
            targets[i] = t[t_at + at];
        }
        EACH(i) if (within(c, i, end)) {
            include(mine, some[i]);
            my_weight += targets[i];
        }
    }
    const Exponentials all = column_exponentials(mine, batch);
    const float log_total = ieee_log(all.total), ratio = column_sum(2, my_weight, batch) / all.total;
    FOURS(c, share, end) {
        float some[FOUR], targets[FOUR];
        EACH(i) {
            const uint at = place(c, i, end) * batch + column;
            some[i] = x[x_at + at] - all.largest;
            targets[i] = t[t_at + at];
        }
        EACH(i) if (within(c, i, end)) {
            my_loss += targets[i] * (log_total - (targets[i] == 0.0 ? 0.0 : some[i]));  // 0 where some[i] is -inf
            dx[dx_at + (c + i * shares) * batch + column] = factor * (ratio * ieee_exp(some[i]) - targets[i]);
        }
    }
    barrier();  // all have read what `found` held before
    const float loss = column_sum(0, my_loss, batch);
    if (share == 0 && column < batch) losses[losses_at + column] = loss;
}
