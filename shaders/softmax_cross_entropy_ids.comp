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
NUMBERS(1, , Dx, dx)
NUMBERS(2, readonly, X, x)
layout(set = 0, binding = 3) readonly buffer Ids_ { uint ids[]; };  // a negative id is a large one
#define LOAD EACH(i) some[i] = NUMBER(x, 2, x_at, place(k, i, end) * batch + column)

const uint NOTHING = 0x80000000u;

void main() {
    const uint column = column_of(batch), share = share_of(batch), end = column < batch ? classes : 0;
    float some[loads];
    Exponentials mine = NONE;
    {
        PASS {
            LOAD;
            include(mine, some, k, end);
        } AGAIN;
    }
    const Exponentials all = column_exponentials(mine, batch);
    if (column >= batch) return;
    const uint id = ids[ids_at + column];
    const float valid = id < classes ? 1.0 : NOT_A_NUMBER, scale = valid * factor / all.total;
    PASS {
        if (whole == 0) LOAD;
        EACH(i) if (within(k, i, end)) {
            const float z = some[i] - all.largest, y = id == NOTHING ? 0.0 : scale * ieee_exp(z);
            const bool here = i * shares == id - k;
            PUT_ALONE(dx, 1, FIRST_OF(1, dx_at) + k * batch + column + i * (shares * batch), here ? y - factor : y)
            if (here) losses[losses_at + column] = ieee_log(all.total) - z;
        }
    } AGAIN;
    if (share == 0 && id >= classes) losses[losses_at + column] = id == NOTHING ? 0.0 : NOT_A_NUMBER;
}
