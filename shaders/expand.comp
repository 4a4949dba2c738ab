// expand: out = factor x, x repeated along the axes of out where its stride is 0.  out[n]; any words survive a factor of 1
// grid: n / turns invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define PARAMS float factor;
#define TYPE uint
#include "strided.glsl"

uint f(uint x) { return factor == 1.0 ? x : floatBitsToUint(factor * uintBitsToFloat(x)); }
