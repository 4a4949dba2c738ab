// gelu_tanh_grad: out = g gelu_tanh'(x); the slope is 0 or 1 beyond 10, where x^2 could overflow.  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#include "gradient.glsl"
#include "functions.glsl"

float f(float x, float g) { return gelu_tanh_grad_of(x, g); }
