// What the products of matrices in matmul.glsl are given: constants, sizes, operands.
#include "epilogue_args.glsl"
#ifdef CHAIN  // whose constants come first
layout(constant_id = 18) const uint ta = 0;
layout(constant_id = 19) const uint tb = 0;
#else
layout(constant_id = 8) const uint ta = 0;
layout(constant_id = 9) const uint tb = 0;
#endif
layout(push_constant) uniform Args { uint rows, cols, inner, out_at, a_at, b_at; PARAMS EPILOGUE };

#if defined(ALSO) || defined(ROW_SUMS)  // there is a second result
#define A_BINDING 2
#define B_BINDING 3
#else
#define A_BINDING 1
#define B_BINDING 2
#endif
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 0) buffer OutQuads_ { vec4 out_quads[]; };
layout(set = 0, binding = A_BINDING) readonly buffer A_ { float a[]; };
layout(set = 0, binding = A_BINDING) readonly buffer AQuads_ { vec4 a_quads[]; };
layout(set = 0, binding = B_BINDING) readonly buffer B_ { float b[]; };
layout(set = 0, binding = B_BINDING) readonly buffer BQuads_ { vec4 b_quads[]; };
#ifdef ALSO
layout(constant_id = 20) const uint kept = 0;  // the register that becomes also
layout(set = 0, binding = 1) buffer Also_ { float also[]; };
layout(set = 0, binding = 1) buffer AlsoQuads_ { vec4 also_quads[]; };
#endif
#ifdef ROW_SUMS
layout(set = 0, binding = 1) buffer Row_sums_ { float row_sums[]; };
#endif
