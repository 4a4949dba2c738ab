// sub: out = a - b.  out[n]; a and b broadcast to it by strides
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "broadcast.glsl"

float f(float a, float b) { return a - b; }
