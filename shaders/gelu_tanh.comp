// gelu_tanh: out = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.  out[n], x[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "unary.glsl"
#include "tanh.glsl"

float f(float x) {
    const float t = accurate_tanh(0.7978845608 * (x + 0.044715 * x * x * x));
    return x * (0.5 * (1.0 + t));
}
