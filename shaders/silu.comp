// silu: out = x / (1 + exp(-x)); where exp overflows the quotient is 0.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "ieee.glsl"

float f(float x) { return x < -88.0 && !isinf(x) ? 0.0 : x / (1.0 + ieee_exp(-x)); }
