// Columns of x[outer, length, inner] along the middle axis, numbered in memory order.  A workgroup has 128 / shares
// columns, each shared by `shares` invocations: one for short columns, all for a few long ones.  They combine what they
// found always in the same order, so with the same bits.
#include "shares.glsl"
#include "ieee.glsl"

shared float found[3][128];  // one row per reduction of a kernel: no barrier needed between them

void publish(uint reduction, float value, uint inner) {
    found[reduction][share_of(inner) * COLUMNS + column_in_group(inner)] = value;
}

float column_sum(uint reduction, float share, uint inner) {
    if (shares == 1) return share;
    publish(reduction, share, inner);
    barrier();
    float total = 0.0;
    for (uint s = 0; s < shares; s++) total += found[reduction][s * COLUMNS + column_in_group(inner)];
    return total;
}

// The largest number of a column and the sum of exp(x - largest), both in one pass: what was summed up shrinks when a
// larger number turns up.  NaN and infinity end up in the sum.
struct Exponentials { float largest, total; };
#define NONE Exponentials(-INFINITY, 0.0)

float base(float largest) { return largest == -INFINITY ? 0.0 : largest; }

void include(inout Exponentials e, float x) {
    if (x > e.largest) {
        e.total = e.total * ieee_exp(e.largest - x) + (isinf(x) ? NOT_A_NUMBER : 1.0);
        e.largest = x;
    } else {
        e.total += ieee_exp(x - base(e.largest));
    }
}

// Of the whole column, from the shares; takes reductions 0 and 1.
Exponentials column_exponentials(Exponentials share, uint inner) {
    if (shares == 1) return share;
    publish(0, share.largest, inner);
    publish(1, share.total, inner);
    barrier();
    const uint column = column_in_group(inner);
    Exponentials all = NONE;
    for (uint s = 0; s < shares; s++) all.largest = max(all.largest, found[0][s * COLUMNS + column]);
    for (uint s = 0; s < shares; s++)
        all.total += found[1][s * COLUMNS + column] * ieee_exp(found[0][s * COLUMNS + column] - base(all.largest));
    return all;
}
