// abs_grad: out = g sign(x), 0 at 0; a NaN in either is not lost.  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#include "gradient.glsl"
#include "functions.glsl"

float f(float x, float g) { return abs_grad_of(x, g); }
