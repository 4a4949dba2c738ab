// out[product] = op(A) op(B), where op transposes if its flag is set, of matrices that lie one after the other.
// The kernel defines before including this: PARAMS, further push-constant members; PRODUCTS, their number; MATRIX, the
// number of the matrices of a product; FIRST and END, its part of the inner axis.  With CHAIN, a chain of functions of
// the product is stored in its place, and with ALSO another of the chain's registers; with ROW_SUMS, the sums of A's rows.
#ifdef CHAIN  // whose constants come first
layout(constant_id = 18) const uint ta = 0;
layout(constant_id = 19) const uint tb = 0;
#define EPILOGUE uint c_at, d_at, e_at; float value[6];
#else
layout(constant_id = 8) const uint ta = 0;
layout(constant_id = 9) const uint tb = 0;
#define EPILOGUE
#endif
layout(push_constant) uniform Args { uint rows, cols, inner, out_at, a_at, b_at; PARAMS EPILOGUE };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 0) buffer OutQuads_ { vec4 out_quads[]; };
#if defined(ALSO) || defined(ROW_SUMS)  // a second result
layout(set = 0, binding = 2) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 2) readonly buffer AQuads_ { vec4 a_quads[]; };
layout(set = 0, binding = 3) readonly buffer B_ { float b[]; };
layout(set = 0, binding = 3) readonly buffer BQuads_ { vec4 b_quads[]; };
#else
layout(set = 0, binding = 1) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 1) readonly buffer AQuads_ { vec4 a_quads[]; };
layout(set = 0, binding = 2) readonly buffer B_ { float b[]; };
layout(set = 0, binding = 2) readonly buffer BQuads_ { vec4 b_quads[]; };
#endif
#ifdef ALSO
layout(constant_id = 20) const uint kept = 0;  // the register that becomes also
layout(set = 0, binding = 1) buffer Also_ { float also[]; };
layout(set = 0, binding = 1) buffer AlsoQuads_ { vec4 also_quads[]; };
#endif
#ifdef ROW_SUMS
layout(set = 0, binding = 1) buffer Row_sums_ { float row_sums[]; };
#endif
#define A_ALONG_K (ta == 0)
#define B_ALONG_K (tb != 0)
#include "product.glsl"
#ifdef CHAIN
#include "epilogue.glsl"
#endif

uint out_0, a_0, b_0;

void begin(uint product) {
    out_0 = out_at + product * rows * cols;
    a_0 = a_at + MATRIX * rows * inner;
    b_0 = b_at + MATRIX * inner * cols;
    first = FIRST;
    end = END;
}

// What is outside is not read: the first word of the buffer is, and dropped, as that takes no branch.
vec4 a_quad(uint row, uint k) {
    const uint i = a_0 + (A_ALONG_K ? row * inner + k : k * rows + row);
    const bool inside = row < rows && k < end;
    if (vector != 0) return inside ? a_quads[inside ? i / 4 : 0] : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const bool in_c = inside && (A_ALONG_K ? k + c < end : row + c < rows);
        found[c] = in_c ? a[in_c ? i + c : 0] : 0.0;
    }
    return found;
}

vec4 b_quad(uint k, uint col) {
    const uint i = b_0 + (B_ALONG_K ? col * inner + k : k * cols + col);
    const bool inside = col < cols && k < end;
    if (vector != 0) return inside ? b_quads[inside ? i / 4 : 0] : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const bool in_c = inside && (B_ALONG_K ? k + c < end : col + c < cols);
        found[c] = in_c ? b[in_c ? i + c : 0] : 0.0;
    }
    return found;
}

// out, or also, from element i on; col is where that lies in its row.
#define STORE(words, quads, i, col, quad) \
    if (vector != 0) { \
        if ((col) < cols) quads[(i) / 4] = quad; \
    } else { \
        [[unroll]] for (uint c_ = 0; c_ < 4; c_++) \
            if ((col) + c_ < cols) words[(i) + c_] = quad[c_]; \
    }

void put(uint row, uint col, vec4 quad) {
    if (row >= rows) return;
    const uint i = row * cols + col;
#ifdef CHAIN
    vec4 kept_quad;
    for (uint k = 0; k < 4; k++) {
        quad[k] = chained(row, min(col + k, cols - 1), quad[k]);
#ifdef ALSO
        kept_quad[k] = r[kept];
#endif
    }
#endif
    STORE(out_, out_quads, out_0 + i, col, quad)
#ifdef ALSO
    STORE(also, also_quads, also_at + i, col, kept_quad)
#endif
}

#ifdef ROW_SUMS
void put_row_sum(uint row, float sum) {
    if (row < rows) row_sums[row_sums_at + row] = sum;
}
#endif
