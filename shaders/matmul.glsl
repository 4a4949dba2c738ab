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
    out_0 = FIRST_OF(0, out_at) + product * rows * cols;
    a_0 = FIRST_OF(A_BINDING, a_at) + MATRIX * rows * inner;
    b_0 = FIRST_OF(B_BINDING, b_at) + MATRIX * inner * cols;
    first = FIRST;
    end = END;
}

// What is outside is not read: the first word of the buffer is, and dropped, as that takes no branch.
vec4 a_quad(uint row, uint k) {
    const uint i = a_0 + (A_ALONG_K ? row * inner + k : k * rows + row);
    const bool inside = row < rows && k < end;
    if (vector != 0) return inside ? QUAD(a, A_BINDING, inside ? i : 0) : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const bool in_c = inside && (A_ALONG_K ? k + c < end : row + c < rows);
        found[c] = in_c ? NUMBER(a, A_BINDING, 0, in_c ? i + c : 0) : 0.0;
    }
    return found;
}

vec4 b_quad(uint k, uint col) {
    const uint i = b_0 + (B_ALONG_K ? col * inner + k : k * cols + col);
    const bool inside = col < cols && k < end;
    if (vector != 0) return inside ? QUAD(b, B_BINDING, inside ? i : 0) : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const bool in_c = inside && (B_ALONG_K ? k + c < end : col + c < cols);
        found[c] = in_c ? NUMBER(b, B_BINDING, 0, in_c ? i + c : 0) : 0.0;
    }
    return found;
}

// Half a word is another invocation's where rows are odd, so each sets its own bits; their order does not matter.
#define STORE(x, name, number, i, quad) \
    if (vector != 0) { \
        if (col < cols && TYPE_OF(number) == 0u) name##_quads[(i) / 4] = quad; \
        else if (col < cols) name##_half_quads[(i) / 4] = narrow_quad(quad, TYPE_OF(number)); \
    } else { \
        [[unroll]] for (uint n = 0; n < 4; n++) { \
            if (col + n >= cols) break; \
            const uint at = (i) + n; \
            if (TYPE_OF(number) == 0u) x[at] = quad[n]; \
            else { \
                atomicAnd(x##_halves[at / 2u], 0xFFFF0000u >> 16 * (at & 1u)); \
                atomicOr(x##_halves[at / 2u], narrow(quad[n], at, TYPE_OF(number))); \
            } \
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
