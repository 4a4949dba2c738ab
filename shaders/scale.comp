// scale: out = factor x.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define PARAMS float factor;
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return scale_of(x, factor); }
