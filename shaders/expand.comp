// expand: out = factor x, x repeated along the axes of out where its stride is 0.  out[n]
// grid: n / turns invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define PARAMS float factor;
#include "strided.glsl"

float f(float x) { return factor * x; }
