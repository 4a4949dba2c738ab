// softmax_cross_entropy_ids, per column: losses = log total - z[id] with z = x - max x and total = sum of exp(z);
// dx = factor (exp(z) / total - [class = id]).  losses[1, batch]; dx, x [classes, batch]; ids[batch]
// An id that is no class makes its loss and its column of dx NaN.  Loops as in softmax_cross_entropy.
// grid: batch invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint classes, batch, losses_at, dx_at, x_at, ids_at; float factor; };
layout(set = 0, binding = 0) buffer Losses_ { float losses[]; };
layout(set = 0, binding = 1) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer Ids_ { uint ids[]; };  // a negative id is a large one

void main() {
    const uint column = invocation(), end = classes * batch;
    if (column >= batch) return;
    const uint id = ids[ids_at + column];
    const float valid = id < classes ? 1.0 : uintBitsToFloat(0x7FC00000u);
    float largest = x[x_at + column];
    for (uint i = column; i < end; i += batch) largest = max(largest, x[x_at + i]);
    float total = 0.0;
    for (uint i = column; i < end; i += batch) total += exp(x[x_at + i] - largest);
    const float scale = valid * factor / total;
    for (uint i = column; i < end; i += batch) dx[dx_at + i] = scale * exp(x[x_at + i] - largest);
    const uint picked = min(id, classes - 1) * batch + column;
    dx[dx_at + picked] -= factor;
    losses[losses_at + column] = valid * (log(total) - (x[x_at + picked] - largest));
}
