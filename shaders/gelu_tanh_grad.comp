// gelu_tanh_grad: out = g gelu_tanh'(x); the slope is 0 or 1 beyond 10, where x^2 could overflow.  out[n], x[n], g[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#define SAVED x
#include "gradient.glsl"
#include "tanh.glsl"

float f(float x, float g) {
    x = x < -10.0 ? -10.0 : x > 10.0 ? 10.0 : x;
    const float t = accurate_tanh(0.7978845608 * (x + 0.044715 * x * x * x));
    return g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608 * (1.0 + 0.134145 * x * x));
}
