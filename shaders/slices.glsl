// The next slices of A and B on their way: into registers, and from there into shared memory.  Used by product.glsl
// alone.  Where A has no quads, with A_BY_WORDS, neighbours load one element each, along the inner axis first.
void fetch(uint top, uint left, uint k) {
#ifdef A_BY_WORDS
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++)
        [[unroll]] for (uint c = 0; c < 4; c++)
            a_next[q][c] = a_word(top + word_place(4 * q + c).x, k + word_place(4 * q + c).y);
#else
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++) a_next[q] = a_quad(top + a_place(q).x, k + a_place(q).y);
#endif
    UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++) b_next[q] = b_quad(k + b_place(q).y, left + b_place(q).x);
}

void keep_fetched() {
#ifdef A_BY_WORDS
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++)
        [[unroll]] for (uint c = 0; c < 4; c++) keep_word(a_next[q][c], word_place(4 * q + c));
#else
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++) keep(a_next[q], a_place(q), A_ALONG_K, 0, A_PITCH);
#endif
    UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++) keep(b_next[q], b_place(q), B_ALONG_K, B_AT, B_PITCH);
}
