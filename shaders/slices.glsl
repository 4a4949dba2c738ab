// The next slices of A and B on their way: into registers, and from there into shared memory.  Used by product.glsl
// alone.  Where A has no quads, with A_BY_WORDS, neighbours load one element each, along the inner axis first.

// Where the q-th quad of an invocation lies in a slice, as a_place and b_place of tiles.glsl say: quads come side by
// side in rows, and a workgroup has whole rows of them, so all quads of an invocation are in one column.  Said so, it
// shows drivers what they need to compute once.
uvec2 quad_place(uint q, bool along_k, uint size) {
    const uint quads = (along_k ? DEPTH : size) / 4, lane = gl_LocalInvocationID.x;
    const uint along = lane % quads * 4, across = lane / quads + q * (THREADS / quads);
    return along_k ? uvec2(across, along) : uvec2(along, across);
}
uvec2 a_quad_place(uint q) { return quad_place(q, A_ALONG_K, TILE_ROWS); }
uvec2 b_quad_place(uint q) { return quad_place(q, B_ALONG_K, TILE_COLS); }

void fetch(uint top, uint left, uint k) {
#ifdef A_BY_WORDS
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++)
        [[unroll]] for (uint c = 0; c < 4; c++)
            a_next[q][c] = a_word(top + word_place(4 * q + c).x, k + word_place(4 * q + c).y);
#else
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++) a_next[q] = a_quad(top + a_quad_place(q).x, k + a_quad_place(q).y);
#endif
    UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++) b_next[q] = b_quad(k + b_quad_place(q).y, left + b_quad_place(q).x);
}

void keep_fetched() {
#ifdef A_BY_WORDS
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++)
        [[unroll]] for (uint c = 0; c < 4; c++) keep_word(a_next[q][c], word_place(4 * q + c));
#else
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++) keep(a_next[q], a_quad_place(q), A_ALONG_K, 0, A_PITCH);
#endif
    UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++) keep(b_next[q], b_quad_place(q), B_ALONG_K, B_AT, B_PITCH);
}
