// out = op(A) B, where op transposes with ta, of a packed matrix A: as matmul.glsl, of which cooperative kernels are
// prebuilt.  The kernel defines before including this: PARAMS, further push-constant members; PRODUCTS, the number of
// pieces of the inner axis; FIRST and END, the part of one.  With CHAIN, a chain of functions of the product is stored
// in its place (epilogue.glsl), and with ALSO another of the chain's registers.
#include "epilogue_args.glsl"
#ifdef CHAIN  // whose constants come first
layout(constant_id = 18) const uint ta = 0;
layout(constant_id = 19) const uint type = 0;
#else
layout(constant_id = 8) const uint ta = 0;
layout(constant_id = 9) const uint type = 0;
#endif
layout(push_constant) uniform Args { uint rows, cols, inner, out_at, b_at, words_at, planes[3]; PARAMS EPILOGUE };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 0) buffer OutQuads_ { vec4 out_quads[]; };
#ifdef ALSO
#define B_BINDING 2
#define WORDS_BINDING 3
layout(constant_id = 20) const uint kept = 0;  // the register that becomes also
layout(set = 0, binding = 1) buffer Also_ { float also[]; };
layout(set = 0, binding = 1) buffer AlsoQuads_ { vec4 also_quads[]; };
#else
#define B_BINDING 1
#define WORDS_BINDING 2
#endif
layout(set = 0, binding = B_BINDING) readonly buffer B_ { float b[]; };
layout(set = 0, binding = B_BINDING) readonly buffer BQuads_ { vec4 b_quads[]; };
layout(set = 0, binding = WORDS_BINDING) readonly buffer Words_ { uint words[]; };

#define A_ALONG_K (ta == 0)
#define B_ALONG_K false
#include "product.glsl"
#include "packed.glsl"
#ifdef CHAIN
float chained(uint row, uint col, float element);
float register_of(uint i);
#endif

uint out_0;

void begin(uint product) {
    out_0 = out_at + product * rows * cols;
    first = FIRST;
    end = END;
}

vec4 a_quad(uint row, uint k) {
    const bool inside = row < rows && k < end;
    return numbers_at(A_ALONG_K ? row * inner + k : k * rows + row, inside ? A_ALONG_K ? end - k : rows - row : 0);
}

vec4 b_quad(uint k, uint col) {
    const uint i = b_at + k * cols + col;
    const bool inside = col < cols && k < end;
    if (vector != 0) return inside ? b_quads[inside ? i / 4 : 0] : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const bool in_c = inside && col + c < cols;
        found[c] = in_c ? b[in_c ? i + c : 0] : 0.0;
    }
    return found;
}

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
