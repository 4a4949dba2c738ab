// gelu_tanh: out = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return gelu_tanh_of(x); }
