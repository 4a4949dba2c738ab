// Columns of x[outer, length, inner] along the middle axis, numbered in memory order: which one an invocation works on.
// A workgroup has 128 / shares columns, and `shares` invocations share each.  Used by columns.glsl and reduce.glsl.
#include "index.glsl"
layout(constant_id = 0) const uint shares = 16;
const uint COLUMNS = 128 / shares;

// Neighbouring invocations read neighbouring words: of several columns, or of one if these are far apart.
uint column_in_group(uint inner) {
    return inner < COLUMNS ? gl_LocalInvocationID.x / shares : gl_LocalInvocationID.x % COLUMNS;
}
uint column_of(uint inner) { return workgroup() * COLUMNS + column_in_group(inner); }
uint share_of(uint inner) {
    return inner < COLUMNS ? gl_LocalInvocationID.x % shares : gl_LocalInvocationID.x / COLUMNS;
}

// An invocation goes through its share in fours, all of which are loaded before the first is used, so that a card has
// them on their way at once: in an experiment, softmax took an H100 0.6 to 0.8 of the time.  Behind the end, the last
// one is loaded.
const uint FOUR = 4;
#define FOURS(k, share, end) for (uint k = share; k < end; k += FOUR * shares)
#define EACH(i) [[unroll]] for (uint i = 0; i < FOUR; i++)
uint place(uint k, uint i, uint end) { return min(k + i * shares, end - 1); }
bool within(uint k, uint i, uint end) { return k + i * shares < end; }
