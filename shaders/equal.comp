// equal: out = 1 where a = b, else 0, with broadcasting.  out[n], a[...], b[...]
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "broadcast.glsl"

float f(float a, float b) { return a == b ? 1.0 : 0.0; }
