// Sums along rows: a workgroup per row, or per piece of a row that is cut into several.  Neighbouring invocations read
// neighbouring words; they combine what they found always in the same order, so with the same bits.
#include "index.glsl"
shared float shares[2][128];

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
