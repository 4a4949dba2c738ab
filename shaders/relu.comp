// relu: out = max(x, 0).  out[n], x[n]; max() may drop a NaN, this comparison keeps it
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return relu_of(x); }
