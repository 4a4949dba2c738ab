// expand: out = factor x, x repeated where its stride along an axis of out is 0.  out[n]; a factor of 1 moves any words
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define PARAMS float factor;
#include "strided.glsl"

uint f(uint x) { return factor == 1.0 ? x : floatBitsToUint(factor * uintBitsToFloat(x)); }
