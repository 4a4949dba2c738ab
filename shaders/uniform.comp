// uniform: out[i] = the i-th uniform number of the stream in `key`, in [0, 1)
// grid: n / 4 invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TYPE float
#include "draws.glsl"

float f(uint bits) { return uniform_from_bits(uvec4(bits)).x; }
