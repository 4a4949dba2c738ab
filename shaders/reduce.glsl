// Reductions along the middle axis of x[outer, length, inner], whose columns invocations share (shares.glsl).  They
// combine what they found through shared memory: always in the same order, so with the same bits.  Barriers cost
// software drivers far more than the few additions that every invocation repeats after the only one.  Where many share
// a column, some of them combine first.
#include "shares.glsl"
shared float found[2][THREADS];  // a row is free again after the next reduction, which takes the other one

const uint ALL = 16, FIRST = shares <= ALL ? shares : shares <= 128 ? 8 : 32;

// What combines two numbers; GLSL's max and min may drop a NaN.
float added(float a, float b) { return a + b; }
float multiplied(float a, float b) { return a * b; }
float larger(float a, float b) { return b > a || isnan(b) ? b : a; }
float smaller(float a, float b) { return b < a || isnan(b) ? b : a; }

#define COMBINED(name, combine) \
float name(uint reduction, float share, uint inner) { \
    if (shares == 1) return share; \
    const uint column = column_in_group(inner), me = share_of(inner); \
    found[reduction][me * COLUMNS + column] = share; \
    barrier(); \
    if (shares > ALL) { \
        if (me < FIRST) { \
            for (uint s = me + FIRST; s < shares; s += FIRST) \
                share = combine(share, found[reduction][s * COLUMNS + column]); \
            found[reduction][me * COLUMNS + column] = share; \
        } \
        barrier(); \
    } \
    float total = found[reduction][column]; \
    for (uint s = 1; s < FIRST; s++) total = combine(total, found[reduction][s * COLUMNS + column]); \
    return total; \
}

COMBINED(column_sum, added)
COMBINED(column_max, larger)
