// Columns of x[outer, length, inner] along the middle axis, numbered in memory order: which one an invocation works on.
// A workgroup has THREADS / shares columns, and `shares` invocations share each.
#include "index.glsl"
#ifndef THREADS_ID
const uint THREADS = 128;
#endif
layout(constant_id = 0) const uint shares = 16;
const uint COLUMNS = THREADS / shares;

// Neighbouring invocations read neighbouring words: of several columns, or of one if these are far apart.
uint column_in_group(uint inner) {
    return inner < COLUMNS ? gl_LocalInvocationID.x / shares : gl_LocalInvocationID.x % COLUMNS;
}
uint column_of(uint inner) { return workgroup() * COLUMNS + column_in_group(inner); }
uint share_of(uint inner) {
    return inner < COLUMNS ? gl_LocalInvocationID.x % shares : gl_LocalInvocationID.x / COLUMNS;
}
