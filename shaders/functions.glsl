// The functions of the elementwise kernels: each kernel maps one, the fused kernels a chain of them.  Arithmetic is
// `precise`, so that a chain rounds after every step as separate kernels do.
#include "tanh.glsl"
#include "normal.glsl"

float add_of(float a, float b) { precise float r = a + b; return r; }
float sub_of(float a, float b) { precise float r = a - b; return r; }
float mul_of(float a, float b) { precise float r = a * b; return r; }
float div_of(float a, float b) { precise float r = a / b; return r; }
float relu_of(float x) { return x < 0.0 ? 0.0 : x; }
float sigmoid_of(float x) { return 0.5 * accurate_tanh(0.5 * x) + 0.5; }
float tanh_of(float x) { return accurate_tanh(x); }
float silu_of(float x) { return x < -88.0 && !isinf(x) ? 0.0 : x / (1.0 + ieee_exp(-x)); }
float exp_of(float x) { return ieee_exp(x); }
float log_of(float x) { return ieee_log(x); }
float sqrt_of(float x) { return x < 0.0 || isnan(x) ? NOT_A_NUMBER : x == 0.0 || isinf(x) ? x : sqrt(x); }
float abs_of(float x) { return abs(x); }
float gelu_of(float x) { return x * normal_cdf(x); }
float gelu_tanh_of(float x) {
    const float t = accurate_tanh(0.7978845608 * (x + 0.044715 * x * x * x));
    return x * (0.5 * (1.0 + t));
}
float scale_of(float x, float factor) { precise float r = factor * x; return r; }
float leaky_relu_of(float x, float slope) { return x > 0.0 ? x : slope * x; }
float relu_grad_of(float y, float g) { return y > 0.0 ? g : y < 0.0 ? -g : y * g; }
float sigmoid_grad_of(float y, float g) { return g * (y * (1.0 - y)); }
float tanh_grad_of(float y, float g) { return g * (1.0 - y * y); }
float silu_grad_of(float x, float g) {
    const float s = x < -88.0 ? 0.0 : 1.0 / (1.0 + ieee_exp(-x));
    return g * (s * (1.0 + x * (1.0 - s)));
}
float abs_grad_of(float x, float g) { return x > 0.0 ? g : x < 0.0 ? -g : x * g; }
float gelu_grad_of(float x, float g) { return g * (normal_cdf(x) + x * normal_density(x)); }
float gelu_tanh_grad_of(float x, float g) {
    x = x < -10.0 ? -10.0 : x > 10.0 ? 10.0 : x;
    const float t = accurate_tanh(0.7978845608 * (x + 0.044715 * x * x * x));
    return g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608 * (1.0 + 0.134145 * x * x));
}
float leaky_relu_grad_of(float x, float g, float slope) { return x > 0.0 ? g : slope * g; }
