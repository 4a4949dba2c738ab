// from_whole: out = x, whole numbers with or without a sign, as floats.  out[n], x[n]
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define PARAMS uint is_signed;
#define TYPE uint
#include "unary.glsl"

uint f(uint x) { return floatBitsToUint(is_signed != 0 ? float(int(x)) : float(x)); }
