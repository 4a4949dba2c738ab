// Sums along rows: a workgroup per row, or per piece of a row that is cut into several.  Neighbouring invocations read
// neighbouring words; they combine what they found always in the same order, so with the same bits.
#define TYPES 0
#include "index.glsl"
#include "numbers.glsl"
shared float shares[2][128];

// An invocation goes through its part of a row in rounds, whose elements are all loaded before the first is used: there
// may be too few workgroups to hide each other's waits.  What is left of the row it goes through one by one.
#define ROUNDS(i, end, some) for (; i + (some - 1) * 128 < end; i += some * 128)
#define REST(i, end) for (; i < end; i += 128)
#define EACH(c, some) [[unroll]] for (uint c = 0; c < some; c++)

uint me() { return gl_LocalInvocationID.x; }

// The sum over all invocations; `slot` 0 and 1 in turn, so that a fast invocation does not overwrite what a slow one
// still reads.
float row_sum(uint slot, float share) {
    shares[slot][me()] = share;
    barrier();
    if (me() < 8) {
        float some = 0.0;
        for (uint i = 0; i < 16; i++) some += shares[slot][8 * i + me()];
        shares[slot][me()] = some;
    }
    barrier();
    float all = 0.0;
    for (uint i = 0; i < 8; i++) all += shares[slot][i];
    return all;
}
