// relu_grad: out = g where y > 0, else 0 g, as a product so that a NaN in g is not lost.  out[n], y[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED y
#include "gradient.glsl"

float f(float y, float g) { return g * float(y > 0.0); }
