// softmax_cross_entropy_ids, per column: losses = log total - z[id] with z = x - max x and total = sum of exp(z);
// dx = factor (exp(z) / total - [class = id]).  losses[1, batch]; dx, x [classes, batch]; ids[batch]
// An id that is no class makes its loss and its column of dx NaN, and 0x80000000 makes both 0.
// dx may be x: who writes an element has read it.
// grid: batch / columns workgroups
// work: classes * batch * 60 operations
// turns: 2 * classes / shares of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "columns.glsl"

layout(push_constant) uniform Args { uint classes, batch, losses_at, dx_at, x_at, ids_at; float factor; };
layout(set = 0, binding = 0) buffer Losses_ { float losses[]; };
layout(set = 0, binding = 1) buffer Dx_ { float dx[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer Ids_ { uint ids[]; };  // a negative id is a large one

const uint NOTHING = 0x80000000u;

void main() {
    const uint column = column_of(batch), share = share_of(batch);
    const uint end = column < batch ? classes : 0;
    Exponentials mine = NONE;
    FOURS(c, share, end) {
        float some[FOUR];
        EACH(i) some[i] = x[x_at + place(c, i, end) * batch + column];
        EACH(i) if (within(c, i, end)) include(mine, some[i]);
    }
    const Exponentials all = column_exponentials(mine, batch);
    if (column >= batch) return;
    const uint id = ids[ids_at + column];
    const float valid = id < classes ? 1.0 : NOT_A_NUMBER, scale = valid * factor / all.total;
    FOURS(c, share, end) {
        float some[FOUR];
        EACH(i) some[i] = x[x_at + place(c, i, end) * batch + column] - all.largest;
        EACH(i) if (within(c, i, end)) {
            const uint here = c + i * shares;
            const float y = id == NOTHING ? 0.0 : scale * ieee_exp(some[i]);
            dx[dx_at + here * batch + column] = here == id ? y - factor : y;
            if (here == id) losses[losses_at + column] = ieee_log(all.total) - some[i];
        }
    }
    if (share == 0 && id >= classes) losses[losses_at + column] = id == NOTHING ? 0.0 : NOT_A_NUMBER;
}
