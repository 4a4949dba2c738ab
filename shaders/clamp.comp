// clamp: out = min(max(x, lo), hi).  out[n], x[n]; min() and max() may drop a NaN, comparisons keep it
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define PARAMS float lo, hi;
#include "unary.glsl"

float f(float x) {
    const float y = x < lo ? lo : x;
    return y > hi ? hi : y;
}
