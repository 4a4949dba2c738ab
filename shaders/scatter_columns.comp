// scatter_columns: out[d, v] = sum of g[d, p] over the places p from first to last with ids[p] = v, in their order
// out[dim, vocab], g[dim, places], ids[places].  A workgroup has some words, whose sums lie side by side, of some rows.
// All its invocations mark the places of these words in bits, from which a list is made.  What g has there is loaded
// into shared memory at once; then each invocation adds up `each` rows of a word, place after place, without atomics.
// grid: vocab / words, dim / rows workgroups
// work: dim / rows * places * vocab / words multiply-adds
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint dim, places, vocab, first, last, out_at, g_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };

// The layout of the primitive has the rule: few words and rows where there are few, so that there are many workgroups.
layout(constant_id = 0) const uint words = 32;
layout(constant_id = 1) const uint each = 16;
const uint ROWS = 128 / words * each, STAGED = 2048, WINDOW = STAGED / ROWS;
const uint SIXTEEN = 16;                 // additions at once, of several rows or places
#include "places.glsl"
shared float staged[STAGED];             // what g has there, by place and row

void stage(uint size, uint block, uint row_0) {
    for (uint s = gl_LocalInvocationID.x; s < size; s += FOUR * LANES) {
        float some[FOUR];
        EACH(c, FOUR) {
            const uint at = min(s + c * LANES, size - 1), row = min(row_0 + at % ROWS, dim - 1);
            some[c] = g[g_at + row * places + block + listed[at / ROWS] % PLACES];
        }
        EACH(c, FOUR) if (s + c * LANES < size) staged[s + c * LANES] = some[c];
    }
}

void main() {
    const uint lane = gl_LocalInvocationID.x, blocks = (vocab + words - 1) / words;
    const uint word_0 = workgroup() % blocks * words, row_0 = workgroup() / blocks * ROWS;
    const uint word = lane % words, row = lane / words * each;
    float totals[SIXTEEN];
    EACH(r, SIXTEEN) totals[r] = 0.0;
    for (uint block = first; block < last; block += PLACES) {
        found[lane] = 0;
        if (lane == 0) count = 0;
        barrier();
        look(block, min(PLACES, last - block), word_0);
        barrier();
        const uint bits = found[lane];
        uint before = 0;
        if (bits != 0) {
            for (uint s = 0; s < lane; s++) before += bitCount(found[s]);
            atomicAdd(count, bitCount(bits));
        }
        barrier();
        const uint of_block = count;
        for (uint window = 0; window < of_block; window += WINDOW) {
            const uint size = min(WINDOW, of_block - window);
            if (bits != 0) list(bits, before - window, block, word_0);
            barrier();
            stage(size * ROWS, block, row_0);
            barrier();
            for (uint p = 0; p < size; p += SIXTEEN / each) {
                float some[SIXTEEN];
                EACH(i, SIXTEEN) {
                    const uint at = min(p + i / each, size - 1);
                    const bool mine = p + i / each < size && listed[at] / PLACES == word;
                    some[i] = mine ? staged[at * ROWS + row + i % each] : 0.0;
                }
                EACH(i, SIXTEEN) totals[i % each] += some[i];
            }
            barrier();
        }
    }
    EACH(r, SIXTEEN) {
        const uint d = row_0 + row + r;
        if (r < each && d < dim && word_0 + word < vocab) out_[out_at + d * vocab + word_0 + word] = totals[r];
    }
}
