// The next slices of A and B on their way: into registers, and from there into shared memory, as halves.
// Used by cooperative.glsl alone.
void fetch(uint top, uint left, uint k) {
    [[unroll]] for (uint q = 0; q < A_QUADS; q++) a_next[q] = a_quad(top + a_half(q).x, k + a_half(q).y);
    [[unroll]] for (uint q = 0; q < B_QUADS; q++) b_next[q] = b_quad(k + b_half(q).y, left + b_half(q).x);
}

// What is outside of the fetched slices, from k on, becomes 0; not earlier, as who looks at a number waits for it.
void drop_outside(uint top, uint left, uint k) {
    [[unroll]] for (uint q = 0; q < A_QUADS; q++)
        a_next[q] = a_inside(a_next[q], top + a_half(q).x, k + a_half(q).y);
    [[unroll]] for (uint q = 0; q < B_QUADS; q++)
        b_next[q] = b_inside(b_next[q], k + b_half(q).y, left + b_half(q).x);
}

// Puts the fetched slices into shared memory, as A_MAP(quad) and B_MAP(quad) have them.
#define AS_IT_IS(quad) quad
#define KEEP_FETCHED(A_MAP, B_MAP) \
    [[unroll]] for (uint q = 0; q < A_QUADS; q += 2) \
        keep_halves(A_MAP(a_next[q]), A_MAP(a_next[q + 1]), in_line(a_half(q), A_ALONG_K, A_LINE)); \
    [[unroll]] for (uint q = 0; q < B_QUADS; q += 2) \
        keep_halves(B_MAP(b_next[q]), B_MAP(b_next[q + 1]), A_SIZE + in_line(b_half(q), B_ALONG_K, B_LINE));
