// What the products of matrices in matmul.glsl are given: constants, sizes, operands, which may have 16 bits.
#include "epilogue_args.glsl"
#if defined(ALSO) || defined(ROW_SUMS)  // there is a second result
#define A_BINDING 2
#define B_BINDING 3
#else
#define A_BINDING 1
#define B_BINDING 2
#endif
#ifdef CHAIN  // whose constants come first
layout(constant_id = 18) const uint ta = 0;
layout(constant_id = 19) const uint tb = 0;
#define TYPES 20
#else
layout(constant_id = 8) const uint ta = 0;
layout(constant_id = 9) const uint tb = 0;
#ifdef COOPERATIVE
#define TYPES 14
#else
#define TYPES 10
#endif
#endif
#include "numbers.glsl"
layout(push_constant) uniform Args { uint rows, cols, inner, out_at, a_at, b_at; PARAMS EPILOGUE };

NUMBERS(0, , Out, out_)
NUMBERS(A_BINDING, readonly, A, a)
NUMBERS(B_BINDING, readonly, B, b)
QUADS(0, , Out, out)
QUADS(A_BINDING, readonly, A, a)
QUADS(B_BINDING, readonly, B, b)
#ifdef ALSO
layout(constant_id = 21) const uint kept = 0;  // the register that becomes also
NUMBERS(1, , Also, also)
QUADS(1, , Also, also)
#endif
#ifdef ROW_SUMS
layout(set = 0, binding = 1) buffer Row_sums_ { float row_sums[]; };
#endif
