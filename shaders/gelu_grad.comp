// gelu_grad: out = g (Phi(x) + x phi(x)), Phi and phi the normal distribution and density.  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#include "gradient.glsl"
#include "functions.glsl"

float f(float x, float g) { return gelu_grad_of(x, g); }
