// copy: out = x.  out[n], x[n]; words are moved as integers, so any bits survive
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TYPE uint
#include "unary.glsl"

uint f(uint x) { return x; }
