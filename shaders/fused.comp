// fused: out = a chain of up to six elementwise functions of a, b, c, d, which broadcast to it by strides
// out[n]; a, b, c, d of strides of their own, 0 where they repeat
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "fused.glsl"
