// out[product] = op(A) op(B), where op transposes if its flag is set, of matrices that lie one after the other.
// The kernel defines before including this: PARAMS, further push-constant members; PRODUCTS, their number; MATRIX, the
// number of the matrices of a product; FIRST and END, its part of the inner axis.  With CHAIN, a chain of functions of
// the product is stored in its place (epilogue.glsl), and with ALSO another of the chain's registers; with ROW_SUMS,
// the sums of the rows of A are stored, too.  With PACKED, A is packed, and B as it lies.
#include "matrices.glsl"
#define A_ALONG_K (ta == 0)
#ifdef PACKED
#define B_ALONG_K false
#else
#define B_ALONG_K (tb != 0)
#endif
#ifdef COOPERATIVE
#include "cooperative.glsl"
#else
#include "product.glsl"
#endif

#ifndef PACKED
uint a_0;
#endif
uint out_0, b_0;

void begin(uint product) {
    out_0 = FIRST_OF(0, out_at) + product * rows * cols;
#ifndef PACKED
    a_0 = FIRST_OF(A_BINDING, a_at) + MATRIX * rows * inner;
#endif
    b_0 = FIRST_OF(B_BINDING, b_at) + MATRIX * inner * cols;
    first = FIRST;
    end = END;
}

#ifdef PACKED
#include "packed.glsl"

vec4 a_quad(uint row, uint k) {
    const bool inside = row < rows && k < end;
    return numbers_at(A_ALONG_K ? row * inner + k : k * rows + row, inside ? A_ALONG_K ? end - k : rows - row : 0);
}
#else
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
#endif

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

#include "put_quad.glsl"
