// permute: out = x with its axes in another order, given by the strides.  out[n], x[n]; words are moved as integers
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "strided.glsl"

uint f(uint x) { return x; }
