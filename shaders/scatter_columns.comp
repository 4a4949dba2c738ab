// scatter_columns: out[d, v] = sum of g[d, p] over the places p from first to last with ids[p] = v, in their order
// out[dim, vocab], g[dim, places], ids[places].  A workgroup has one word and some rows.  All its invocations look for
// the word together, and mark its places in bits; then each adds up its rows, so that no sum needs atomics.
// grid: dim / 512 * vocab workgroups
// work: dim / 512 * vocab * places multiply-adds
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"

layout(push_constant) uniform Args { uint dim, places, vocab, first, last, out_at, g_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };

const uint ROWS = 4, LANES = 128, PLACES = 32 * LANES;  // places are looked at in blocks, a bit for each
shared uint found[LANES];  // the word's places in the block
shared uint some[4];       // in which words of these there are any

void main() {
    const uint lane = gl_LocalInvocationID.x, word = workgroup() % vocab;
    const uint row_0 = workgroup() / vocab * ROWS * LANES + lane;
    float totals[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) totals[r] = 0.0;
    for (uint block = first; block < last; block += PLACES) {
        found[lane] = 0;
        if (lane < 4) some[lane] = 0;
        barrier();
        const uint end = min(PLACES, last - block);
        for (uint i = lane; i < end; i += LANES) {
            if (ids[ids_at + block + i] == word) {
                atomicOr(found[i / 32], 1u << i % 32);
                atomicOr(some[i / 1024], 1u << i / 32 % 32);
            }
        }
        barrier();
        for (uint s = 0; s < 4; s++) {
            for (uint those = some[s]; those != 0; those &= those - 1) {
                const uint at = 32 * s + findLSB(those);
                for (uint bits = found[at]; bits != 0; bits &= bits - 1) {
                    const uint p = g_at + block + 32 * at + findLSB(bits);
                    [[unroll]] for (uint r = 0; r < ROWS; r++)
                        if (row_0 + r * LANES < dim) totals[r] += g[p + (row_0 + r * LANES) * places];
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (row_0 + r * LANES < dim) out_[out_at + (row_0 + r * LANES) * vocab + word] = totals[r];
}
