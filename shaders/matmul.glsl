// out[product] = op(A) op(B), where op transposes if its flag is set, of matrices that lie one after the other.
// The kernel defines before including this: PARAMS, further push-constant members; PRODUCTS, their number; MATRIX, the
// number of the matrices of a product; FIRST and END, its part of the inner axis.  With CHAIN, a chain of functions of
// the product is stored in its place (epilogue.glsl), and with ALSO another of the chain's registers; with ROW_SUMS,
// the sums of the rows of A are stored, too.
#include "matrices.glsl"
#define A_ALONG_K (ta == 0)
#define B_ALONG_K (tb != 0)
#ifdef COOPERATIVE
#include "cooperative.glsl"
#else
#include "product.glsl"
#endif
#ifdef CHAIN  // in epilogue.glsl, which the kernel includes behind this, so that the others depend on no function
float chained(uint row, uint col, float element);
float register_of(uint i);
#endif

uint out_0, a_0, b_0;

void begin(uint product) {
    out_0 = out_at + product * rows * cols;
    a_0 = a_at + MATRIX * rows * inner;
    b_0 = b_at + MATRIX * inner * cols;
    first = FIRST;
    end = END;
}

// Which elements of a quad are inside.
bvec4 there(uint across, uint most, uint k, bool along_k) {
    const uvec4 each = (along_k ? k : across) + uvec4(0, 1, 2, 3);
    return bvec4(uvec4(lessThan(along_k ? uvec4(across) : each, uvec4(most))) &
                 uvec4(lessThan(along_k ? each : uvec4(k), uvec4(end))));
}
bvec4 a_there(uint row, uint k) { return there(row, rows, k, A_ALONG_K); }
bvec4 b_there(uint k, uint col) { return there(col, cols, k, B_ALONG_K); }

// What is outside is not read: the first word of the buffer is, as that takes no branch.
vec4 a_quad(uint row, uint k) {
    const uint i = a_0 + (A_ALONG_K ? row * inner + k : k * rows + row);
    const uvec4 word = mix(uvec4(0), i + uvec4(0, 1, 2, 3), a_there(row, k));
    return vector != 0 ? a_quads[word.x / 4] : vec4(a[word.x], a[word.y], a[word.z], a[word.w]);
}

vec4 b_quad(uint k, uint col) {
    const uint i = b_0 + (B_ALONG_K ? col * inner + k : k * cols + col);
    const uvec4 word = mix(uvec4(0), i + uvec4(0, 1, 2, 3), b_there(k, col));
    return vector != 0 ? b_quads[word.x / 4] : vec4(b[word.x], b[word.y], b[word.z], b[word.w]);
}

vec4 a_inside(vec4 quad, uint row, uint k) { return mix(vec4(0.0), quad, a_there(row, k)); }
vec4 b_inside(vec4 quad, uint k, uint col) { return mix(vec4(0.0), quad, b_there(k, col)); }

#define STORE(words, quads, i, quad) \
    if (vector != 0) { \
        if (col < cols) quads[(i) / 4] = quad; \
    } else { \
        [[unroll]] for (uint n = 0; n < 4; n++) \
            if (col + n < cols) words[(i) + n] = quad[n]; \
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
    STORE(out_, out_quads, out_0 + i, quad)
#ifdef ALSO
    STORE(also, also_quads, also_at + i, also_quad)
#endif
}
