// Reductions along the middle axis of x[outer, length, inner]; its outer * inner columns are numbered in memory order.
// A workgroup takes 128 / shares columns, each shared by `shares` invocations, which combine what they found through
// shared memory: always in the same order, so with the same bits.  Barriers cost software drivers far more than the few
// additions that every invocation repeats after the only one.
#include "shares.glsl"
shared float found[4][128];  // one row per reduction of a kernel: no barrier needed between them

// What combines two numbers; GLSL's max and min may drop a NaN.
float added(float a, float b) { return a + b; }
float multiplied(float a, float b) { return a * b; }
float larger(float a, float b) { return b > a || isnan(b) ? b : a; }
float smaller(float a, float b) { return b < a || isnan(b) ? b : a; }

#define COMBINED(name, combine) \
float name(uint reduction, float share, uint inner) { \
    if (shares == 1) return share; \
    const uint column = column_in_group(inner); \
    found[reduction][share_of(inner) * COLUMNS + column] = share; \
    barrier(); \
    float total = found[reduction][column]; \
    for (uint s = 1; s < shares; s++) total = combine(total, found[reduction][s * COLUMNS + column]); \
    return total; \
}

COMBINED(column_sum, added)
COMBINED(column_max, larger)
