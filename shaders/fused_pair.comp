// fused_pair: as fused, and also = a result from inside the chain, of the same shape
// out[n], also[n]; a, b, c, d of strides of their own, 0 where they repeat
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define ALSO
#include "fused.glsl"
