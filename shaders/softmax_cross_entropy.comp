// softmax_cross_entropy, per column: losses = sum of t (log total - z) with z = x - max x and total = sum of exp(z);
// dx = factor (sum(t) exp(z) / total - t).  losses[1, batch]; dx, x, t [classes, batch]
// Three passes over the classes: lavapipe ends all loops of an invocation after 65,535 rounds, so 21,845 classes.
// grid: batch invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint classes, batch, losses_at, dx_at, x_at, t_at; float factor; };
layout(set = 0, binding = 0) buffer Losses_ { float losses[]; };
layout(set = 0, binding = 1) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer T_ { float t[]; };

void main() {
    const uint column = invocation(), end = classes * batch;
    if (column >= batch) return;
    float largest = x[x_at + column], weight = 0.0;
    for (uint i = column; i < end; i += batch) {
        largest = max(largest, x[x_at + i]);
        weight += t[t_at + i];
    }
    float total = 0.0;
    for (uint i = column; i < end; i += batch) total += exp(x[x_at + i] - largest);
    const float log_total = log(total), share = weight / total;
    float loss = 0.0;
    for (uint i = column; i < end; i += batch) {
        const float z = x[x_at + i] - largest, target = t[t_at + i];
        loss += target * (log_total - z);
        dx[dx_at + i] = factor * (share * exp(z) - target);
    }
    losses[losses_at + column] = loss;
}
