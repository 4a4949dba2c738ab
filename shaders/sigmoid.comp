// sigmoid: out = 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, which overflows nowhere.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "functions.glsl"

float f(float x) { return sigmoid_of(x); }
