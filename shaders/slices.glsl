// The next slices of A and B on their way: into registers, and from there into shared memory.  Used by product.glsl
// alone.  Where A has no quads, with A_BY_WORDS, neighbours load one element each: along the inner axis, if it is true,
// or across.  Where those of B are not aligned, with B_BY_WORDS, they do so across, so that an invocation looks up one
// column.

// Where the q-th quad of an invocation lies in a slice, across and along the inner axis: neighbours load neighbouring
// words.  The tiles are such that all quads of an invocation lie in one line, and only the part without q is computed.
uvec2 in_slice(uint q, bool along_k, uint size) {
    const uint i = gl_LocalInvocationID.x, wide = along_k ? DEPTH / 4 : size / 4;
    const uint line = i / wide + q * (THREADS / wide);
    return along_k ? uvec2(line, i % wide * 4) : uvec2(i % wide * 4, line);
}
uvec2 a_place(uint q) { return in_slice(q, A_ALONG_K, TILE_ROWS); }
uvec2 b_place(uint q) { return in_slice(q, B_ALONG_K, TILE_COLS); }

// The n-th element that an invocation loads where there are no quads.
uvec2 word_along_k(uint n) {
    return uvec2(gl_LocalInvocationID.x / DEPTH + n * (THREADS / DEPTH), gl_LocalInvocationID.x % DEPTH);
}
uvec2 word_across(uint n, uint size) {
    return uvec2(gl_LocalInvocationID.x % size, gl_LocalInvocationID.x / size + n * (THREADS / size));
}
#ifdef A_BY_WORDS
uvec2 a_word_place(uint n) { return A_BY_WORDS ? word_along_k(n) : word_across(n, TILE_ROWS); }
#endif
uvec2 b_word_place(uint n) { return word_across(n, TILE_COLS); }
#ifdef B_BY_WORDS
const bool b_by_words = vector == 0;
#endif

void keep_word(float x, uvec2 at, uint start, uint pitch) { slice[start + at.y * pitch + at.x / 4][at.x % 4] = x; }

// In shared memory the inner axis is always the outer one.
void keep(vec4 quad, uvec2 at, bool along_k, uint start, uint pitch) {
    if (!along_k) slice[start + at.y * pitch + at.x / 4] = quad;
    else [[unroll]] for (uint c = 0; c < 4; c++) slice[start + (at.y + c) * pitch + at.x / 4][at.x % 4] = quad[c];
}

void fetch(uint top, uint left, uint k) {
#ifdef A_BY_WORDS
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++)
        [[unroll]] for (uint c = 0; c < 4; c++)
            a_next[q][c] = a_word(top + a_word_place(4 * q + c).x, k + a_word_place(4 * q + c).y);
#else
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++) a_next[q] = a_quad(top + a_place(q).x, k + a_place(q).y);
#endif
#ifdef B_BY_WORDS
    if (b_by_words) {
        UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++)
            [[unroll]] for (uint c = 0; c < 4; c++)
                b_next[q][c] = b_word(k + b_word_place(4 * q + c).y, left + b_word_place(4 * q + c).x);
        return;
    }
#endif
    UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++) b_next[q] = b_quad(k + b_place(q).y, left + b_place(q).x);
}

void keep_fetched() {
#ifdef A_BY_WORDS
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++)
        [[unroll]] for (uint c = 0; c < 4; c++) keep_word(a_next[q][c], a_word_place(4 * q + c), 0, A_PITCH);
#else
    UNROLL_LOADS for (uint q = 0; q < A_QUADS; q++) keep(a_next[q], a_place(q), A_ALONG_K, 0, A_PITCH);
#endif
#ifdef B_BY_WORDS
    if (b_by_words) {
        UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++)
            [[unroll]] for (uint c = 0; c < 4; c++)
                keep_word(b_next[q][c], b_word_place(4 * q + c), B_AT, B_PITCH);
        return;
    }
#endif
    UNROLL_LOADS for (uint q = 0; q < B_QUADS; q++) keep(b_next[q], b_place(q), B_ALONG_K, B_AT, B_PITCH);
}
