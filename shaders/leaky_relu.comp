// leaky_relu: out = x where x > 0, else slope x.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define PARAMS float slope;
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return leaky_relu_of(x, slope); }
