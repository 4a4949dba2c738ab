// scale: out = factor x.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define PARAMS float factor;
#include "unary.glsl"

float f(float x) { return factor * x; }
