// silu_grad: out = g s (1 + x (1 - s)), where s = 1 / (1 + exp(-x)).  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#include "gradient.glsl"
#include "functions.glsl"

float f(float x, float g) { return silu_grad_of(x, g); }
