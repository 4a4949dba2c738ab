// One workgroup per row: each invocation combines its share of the row, then a tree in shared memory combines the
// shares.  The order is always the same, so the bits are too.
#include "index.glsl"

#define INFINITY uintBitsToFloat(0x7F800000u)
shared float shares[gl_WorkGroupSize.x];

float combined(float share, bool largest) {
    const uint lane = gl_LocalInvocationID.x;
    barrier();  // everybody has read the result of the tree before
    shares[lane] = share;
    for (uint width = gl_WorkGroupSize.x / 2; width > 0; width /= 2) {
        barrier();
        if (lane < width) {
            const float other = shares[lane + width];
            shares[lane] = largest ? max(shares[lane], other) : shares[lane] + other;
        }
    }
    barrier();
    return shares[0];
}

float workgroup_sum(float share) { return combined(share, false); }
float workgroup_max(float share) { return combined(share, true); }
