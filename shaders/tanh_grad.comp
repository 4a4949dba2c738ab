// tanh_grad: out = g (1 - y^2).  out[n], y[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED y
#include "gradient.glsl"
#include "functions.glsl"

float f(float y, float g) { return tanh_grad_of(y, g); }
