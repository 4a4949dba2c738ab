// scatter_columns: out[d, v] = sum of g[d, p] over the places p from first to last with ids[p] = v, in their order
// out[dim, vocab], g[dim, places], ids[places].  A workgroup has 32 words, whose sums lie side by side, of 64 rows.
// All its invocations look for these words, and mark their places in bits; then each adds up a row of half of the words
// in shared memory, place after place.  So no sum needs atomics, and what is written are whole sectors.
// grid: vocab / 32, dim / 64 workgroups
// work: dim / 64 * places * vocab / 32 multiply-adds
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint dim, places, vocab, first, last, out_at, g_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };

const uint LANES = 128, ROWS = 64, WORDS = 32, HALF = WORDS / 2;
const uint PLACES = 32 * LANES;          // places are looked at in blocks, a bit for each
const uint PITCH = WORDS + 1;            // so that neighbouring rows lie in different banks
shared uint found[LANES];                // the words' places in the block
shared float totals[ROWS * PITCH];       // per row and word

void main() {
    const uint lane = gl_LocalInvocationID.x, blocks = (vocab + WORDS - 1) / WORDS;
    const uint word_0 = workgroup() % blocks * WORDS, row_0 = workgroup() / blocks * ROWS;
    const uint row = lane % ROWS, part = lane / ROWS, total_0 = row * PITCH;
    const uint g_0 = g_at + min(row_0 + row, dim - 1) * places;
    for (uint w = 0; w < HALF; w++) totals[total_0 + part * HALF + w] = 0.0;
    for (uint block = first; block < last; block += PLACES) {
        const uint end = min(PLACES, last - block);
        found[lane] = 0;
        barrier();
        for (uint i = lane; i < end; i += LANES)
            if (ids[ids_at + block + i] - word_0 < WORDS) atomicOr(found[i / 32], 1u << i % 32);
        barrier();
        for (uint s = 0; 32 * s < end; s++) {
            for (uint bits = found[s]; bits != 0; bits &= bits - 1) {
                const uint p = block + 32 * s + findLSB(bits), w = ids[ids_at + p] - word_0;
                if (w / HALF == part) totals[total_0 + w] += g[g_0 + p];
            }
        }
        barrier();
    }
    barrier();
    for (uint i = lane; i < ROWS * WORDS; i += LANES) {
        const uint d = row_0 + i / WORDS, w = word_0 + i % WORDS;
        if (d < dim && w < vocab) out_[out_at + d * vocab + w] = totals[i / WORDS * PITCH + i % WORDS];
    }
}
