// pow_grad: out = g p x^(p - 1), and 0 g for p = 0.  out[n], x[n], g[n]
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#define PARAMS float p;
#include "gradient.glsl"
#include "power.glsl"

float f(float x, float g) { return g * (p == 0.0 ? 0.0 : p * power(x, p - 1.0)); }
