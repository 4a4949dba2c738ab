// clip_factor: out = max_norm / sqrt(x) if that root is finite and larger than max_norm, else 1
// out[n], x[n]
// grid: n / turns invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define PARAMS float max_norm;
#include "unary.glsl"

float f(float x) {
    const float norm = sqrt(x);
    const bool finite = (floatBitsToUint(x) & 0x7F800000u) != 0x7F800000u;
    return finite && norm > max_norm ? max_norm / norm : 1.0;
}
