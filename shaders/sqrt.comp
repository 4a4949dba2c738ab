// sqrt: out = sqrt(x), NaN for x < 0, where GLSL leaves it open.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return sqrt_of(x); }
