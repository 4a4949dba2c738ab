// clamp_grad: out = g where lo <= x <= hi, else 0 g.  out[n], x[n], g[n]
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#define PARAMS float lo, hi;
#include "gradient.glsl"

float f(float x, float g) { return g * float(x >= lo && x <= hi); }
