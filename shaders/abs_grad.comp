// abs_grad: out = g sign(x), 0 at 0; a NaN in either is not lost.  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#include "gradient.glsl"

float f(float x, float g) { return x > 0.0 ? g : x < 0.0 ? -g : x * g; }
