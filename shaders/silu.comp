// silu: out = x / (1 + exp(-x)); where exp overflows the quotient is 0.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return silu_of(x); }
