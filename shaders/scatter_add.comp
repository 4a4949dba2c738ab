// scatter_add: out[o, v, i] = sum of g[o, p, i] over the places p from first to last with ids[p] = v, in their order
// out[outer, length, inner], g[outer, places, inner], ids[places].  A row is a pair of o and i.  A workgroup has some
// words v, whose sums lie side by side, of some rows.  All its invocations mark the places of these words in bits, from
// which a list is made.  What g has there is loaded into shared memory at once; then each invocation adds up `each`
// rows of a word, place after place, without atomics.
// With `wraps` a negative id counts from the end.  An id that is no word, but 0x80000000, leaves NaN at the first word.
// grid: length / words, outer * inner / rows workgroups
// work: outer * inner / rows * places * length / words multiply-adds
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "ieee.glsl"
#define TYPES 2
#include "numbers.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, places, first, last, wraps, out_at, g_at, ids_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
NUMBERS(1, readonly, G, g)
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };

// The layout of the primitive has the rule: few words and rows where there are few, so that there are many workgroups.
layout(constant_id = 0) const uint words = 32;
layout(constant_id = 1) const uint each = 16;
const uint ROWS = 128 / words * each, STAGED = 2048, WINDOW = STAGED / ROWS;
const uint SIXTEEN = 16;                 // additions at once, of several rows or places
#include "ids.glsl"
#include "places.glsl"
shared float staged[STAGED];             // what g has there, by place and row

void stage(uint size, uint block, uint row_0) {
    for (uint s = gl_LocalInvocationID.x; s < size; s += FOUR * LANES) {
        float some[FOUR];
        EACH(c, FOUR) {
            const uint at = min(s + c * LANES, size - 1), row = min(row_0 + at % ROWS, outer * inner - 1);
            const uint place = block + listed[at / ROWS] % PLACES;
            some[c] = NUMBER(g, 1, g_at, (row / inner * places + place) * inner + row % inner);
        }
        EACH(c, FOUR) if (s + c * LANES < size) staged[s + c * LANES] = some[c];
    }
}

void main() {
    const uint lane = gl_LocalInvocationID.x, blocks = (length + words - 1) / words;
    const uint word_0 = workgroup() % blocks * words, row_0 = workgroup() / blocks * ROWS;
    const uint word = lane % words, row = lane / words * each;
    float totals[SIXTEEN];
    EACH(r, SIXTEEN) totals[r] = 0.0;
    if (lane == 0) outside = 0;
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
    const bool wrong = first < last && outside != 0;
    EACH(r, SIXTEEN) {
        const uint of = row_0 + row + r, v = word_0 + word;
        if (r < each && of < outer * inner && v < length)
            out_[out_at + (of / inner * length + v) * inner + of % inner] =
                wrong && v == 0 ? NOT_A_NUMBER : totals[r];
    }
}
