// sub: out = a - b.  out[n]; a and b broadcast to it by strides
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "broadcast.glsl"
#include "functions.glsl"

float f(float a, float b) { return sub_of(a, b); }
