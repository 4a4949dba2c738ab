// clip_factor: norm = sqrt(near), or 2^80 sqrt(far) where near overflowed; factor = min(1, max_norm / norm), 1 if the
// norm is not finite, and NaN if the quotient is too small.  All [n]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n, factor_at, norm_at, near_at, far_at; float max_norm; };
layout(set = 0, binding = 0) buffer Factor_ { float factor[]; };
layout(set = 0, binding = 1) buffer Norm_ { float norm[]; };
layout(set = 0, binding = 2) readonly buffer Near_ { float near[]; };
layout(set = 0, binding = 3) readonly buffer Far_ { float far[]; };

bool finite(float x) { return (floatBitsToUint(x) & 0x7F800000u) != 0x7F800000u; }

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const bool close = finite(near[near_at + i]);
    const float square = close ? near[near_at + i] : far[far_at + i], unit = close ? 1.0 : 1.2089258e24;
    const float root = sqrt(square), whole = unit * root, quotient = max_norm / unit / root;
    const bool clips = finite(square) && whole > max_norm;
    norm[norm_at + i] = isnan(square) ? square : whole;
    factor[factor_at + i] = !clips ? 1.0 : quotient < 1.17549435e-38 ? uintBitsToFloat(0x7FC00000u) : quotient;
}
