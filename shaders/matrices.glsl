// What the products of matrices in matmul.glsl are given: constants, sizes, operands, which may have 16 bits.  With
// PACKED, A is a packed matrix in words, which come last, and `type` says how (packed.glsl).
#include "epilogue_args.glsl"
#if defined(ALSO) || defined(ROW_SUMS)
#define RESULTS 2
#else
#define RESULTS 1
#endif
#ifdef PACKED
#define SECOND type
#define SIZES rows, cols, inner, out_at, b_at, words_at, planes[3]
#define B_BINDING RESULTS
#else
#define SECOND tb
#define SIZES rows, cols, inner, out_at, a_at, b_at
#define A_BINDING RESULTS
#define B_BINDING RESULTS + 1
#endif
#ifdef CHAIN  // whose constants come first
layout(constant_id = 18) const uint ta = 0;
layout(constant_id = 19) const uint SECOND = 0;
#define TYPES 20
#else
layout(constant_id = 8) const uint ta = 0;
layout(constant_id = 9) const uint SECOND = 0;
#ifdef COOPERATIVE
#define TYPES 14
#else
#define TYPES 10
#endif
#endif
#include "numbers.glsl"
layout(push_constant) uniform Args { uint SIZES; PARAMS EPILOGUE };

NUMBERS(0, , Out, out_)
QUADS(0, , Out, out)
NUMBERS(B_BINDING, readonly, B, b)
QUADS(B_BINDING, readonly, B, b)
#ifdef PACKED
layout(set = 0, binding = RESULTS + 1) readonly buffer Words_ { uint words[]; };
#else
NUMBERS(A_BINDING, readonly, A, a)
QUADS(A_BINDING, readonly, A, a)
#endif
#ifdef ALSO
layout(constant_id = 21) const uint kept = 0;  // the register that becomes also
NUMBERS(1, , Also, also)
QUADS(1, , Also, also)
#endif
#ifdef ROW_SUMS
layout(set = 0, binding = 1) buffer Row_sums_ { float row_sums[]; };
#endif
