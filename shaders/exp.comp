// exp: out = exp(x).  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return exp_of(x); }
