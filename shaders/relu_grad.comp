// relu_grad: out = g sign(y), where y = relu(x) is never negative; a NaN in either is not lost.  out[n], y[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED y
#include "gradient.glsl"
#include "functions.glsl"

float f(float y, float g) { return relu_grad_of(y, g); }
