// leaky_relu_grad: out = g where x > 0, else slope g.  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#define PARAMS float slope;
#include "gradient.glsl"
#include "functions.glsl"

float f(float x, float g) { return leaky_relu_grad_of(x, g, slope); }
