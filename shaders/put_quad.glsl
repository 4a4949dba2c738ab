// How matmul.glsl stores four elements of a row of out, those that are inside.
#ifdef CHAIN  // in epilogue.glsl, which the kernel includes behind this, so that the others depend on no function
float chained(uint row, uint col, float element);
float register_of(uint i);
#endif

// Half a word is another invocation's where rows are odd.
#define STORE(x, name, number, i, quad) \
    if (vector != 0) { \
        if (col < cols) PUT_QUAD(name, number, i, quad) \
    } else { \
        [[unroll]] for (uint n = 0; n < 4; n++) { \
            if (col + n >= cols) break; \
            PUT_ALONE(x, number, (i) + n, quad[n]) \
        } \
    }

void put(uint row, uint col, vec4 quad) {
    if (row >= rows) return;
    const uint i = row * cols + col;
#ifdef CHAIN
    vec4 also_quad;
    for (uint n = 0; n < 4; n++) {
        quad[n] = chained(row, min(col + n, cols - 1), quad[n]);
#ifdef ALSO
        also_quad[n] = register_of(kept);
#endif
    }
#endif
    STORE(out_, out, 0, out_0 + i, quad)
#ifdef ALSO
    STORE(also, also, 1, FIRST_OF(1, also_at) + i, also_quad)
#endif
}
