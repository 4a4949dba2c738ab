// log_softmax_columns: out = z - log(sum of exp(z)) with z = x - max x, per column.  out, x [classes, batch]
// Loops as in softmax_cross_entropy.
// grid: batch invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint classes, batch, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint column = invocation(), end = classes * batch;
    if (column >= batch) return;
    float largest = x[x_at + column];
    for (uint i = column; i < end; i += batch) largest = max(largest, x[x_at + i]);
    float total = 0.0;
    for (uint i = column; i < end; i += batch) total += exp(x[x_at + i] - largest);
    const float log_total = log(total);
    for (uint i = column; i < end; i += batch) out_[out_at + i] = x[x_at + i] - largest - log_total;
}
