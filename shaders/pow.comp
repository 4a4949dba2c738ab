// pow: out = x^p.  out[n], x[n]
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define PARAMS float p;
#include "unary.glsl"
#include "power.glsl"

float f(float x) { return power(x, p); }
