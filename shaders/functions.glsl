// The elementwise functions: `<name>_of` is what the primitive `<name>` computes.  kernels_build.py writes from each a
// kernel of its own and an instruction of chains.  Operands (a, b) broadcast; (x) is a unary function's; (x, g) and
// (y, g) carry a cotangent g back through a unary function of input x and output y.  What is `const` is a parameter of
// the launch.  All arithmetic is `precise`, also in what these functions call: a chain rounds after every step as
// separate kernels do, and no driver makes one function of two (sigmoid and its gradient have much in common).
#include "tanh.glsl"
#include "normal.glsl"

// ---------------------------------------------------------------------------- as in ag/engine/kernels/elementwise.py

// add, sub, mul, div, scale: a + b, a - b, a b, a / b, factor x
float add_of(float a, float b) { precise float r = a + b; return r; }
float sub_of(float a, float b) { precise float r = a - b; return r; }
float mul_of(float a, float b) { precise float r = a * b; return r; }
float div_of(float a, float b) {  // beyond 2^126 the reciprocal of b, which drivers make it with, may become 0
    const float less = abs(b) > 8.5070592e37 ? 0.25 : 1.0;
    precise float r = (a * less) / (b * less);
    return r;
}
// target_log, target_div: log b and a / b; 0 where a target a of 0 meets a probability b of 0
float target_log_of(float a, float b) { return a == 0.0 && isinf(ieee_log(b)) ? 0.0 : ieee_log(b); }
float target_div_of(float a, float b) { return a == 0.0 && abs(b) < 1.17549435e-38 ? 0.0 : div_of(a, b); }
float scale_of(float x, const float factor) { precise float r = factor * x; return r; }

// exp, log, sqrt: with the special values of IEEE 754; sqrt is NaN for x < 0, where GLSL leaves it open
float exp_of(float x) { return ieee_exp(x); }
float log_of(float x) { return ieee_log(x); }
float sqrt_of(float x) { return x < 0.0 || isnan(x) ? NOT_A_NUMBER : x == 0.0 || isinf(x) ? x : sqrt(x); }

// abs: |x|, and abs_grad: g sign(x), 0 at 0; a NaN in either is not lost
float abs_of(float x) { return abs(x); }
float abs_grad_of(float x, float g) { precise float r = x > 0.0 ? g : x < 0.0 ? -g : x * g; return r; }

// ----------------------------------------------------------------------------- as in ag/engine/kernels/activation.py

// relu: max(x, 0).  relu_grad: g sign(y), y is never negative
float relu_of(float x) { return x < 0.0 ? 0.0 : x; }
float relu_grad_of(float y, float g) { precise float r = y > 0.0 ? g : y < 0.0 ? -g : y * g; return r; }

// leaky_relu: x where x > 0, else slope x
float leaky_relu_of(float x, const float slope) { precise float r = x > 0.0 ? x : slope * x; return r; }
float leaky_relu_grad_of(float x, float g, const float slope) { precise float r = x > 0.0 ? g : slope * g; return r; }

// x / (1 + exp(-z)), exact relative to the result: (1 + tanh(z / 2)) / 2 would lose the digits of small ones.  Below
// -88 exp(-z) may overflow, and the quotient is x exp(z), in factors that are not too small.  One exp for both cases
float gated(float x, float z) {
    precise float e = ieee_exp(z < -88.0 ? 0.5 * z : -z), product = x * e * e, quotient = x / (1.0 + e);
    return z < -88.0 ? product : quotient;
}

// What x s(z) sends back, s(z) = 1 / (1 + exp(-z)) and `slope` x times that of z: g s(z) (1 + slope s(-z)).  With
// e = exp(-|z|), one of s(z) and s(-z) is 1 / (1 + e), which is 1 beyond 64, and the other e times that, as in `gated`.
float gated_grad(float slope, float z, float g) {
    precise float size = abs(z), e = ieee_exp(size > 64.0 ? -0.5 * size : -size), most = 1.0 / (1.0 + e);
    precise float rise = 1.0 + slope * (z < 0.0 ? most : e * most);
    precise float r = g * (z < 0.0 ? rise * e * (size > 64.0 ? e : most) : rise * most);
    return r;
}

// sigmoid: 1 / (1 + exp(-x)).  sigmoid_grad: g y (1 - y)
float sigmoid_of(float x) { return gated(1.0, x); }
float sigmoid_grad_of(float y, float g) { precise float r = g * (y * (1.0 - y)); return r; }

// tanh: to 2 ulp.  tanh_grad: g (1 - y^2)
float tanh_of(float x) { return accurate_tanh(x); }
float tanh_grad_of(float y, float g) { precise float r = g * (1.0 - y * y); return r; }

// silu: x s, where s = 1 / (1 + exp(-x)).  silu_grad: g s (1 + x (1 - s))
float silu_of(float x) { return gated(x, x); }
float silu_grad_of(float x, float g) { return gated_grad(x, x, g); }

// gelu: x Phi(x).  gelu_grad: g (Phi(x) + x phi(x)), Phi and phi the normal distribution and density; their sum is made
// 2^40 times as large, as Phi may be too small where the sum is not
float gelu_of(float x) { return times_normal_cdf(x, x); }
float gelu_grad_of(float x, float g) {
    const float large = 1099511627776.0;
    x = x < -40.0 ? -40.0 : x > 40.0 ? 40.0 : x;  // the slope is 0 or 1 beyond
    precise float r = g * ((times_normal_cdf(large, x) + times_density(large * x, x)) / large);
    return r;
}

// gelu_tanh: x (1 + tanh(z / 2)) / 2 = x / (1 + exp(-z)), where z = 2 sqrt(2 / pi) (x + 0.044715 x^3); its slope is 0
// or 1 beyond 40, where x^2 could overflow
float gelu_tanh_of(float x) {
    precise float z = x * (1.5957691216 + 0.0713548163 * (x * x));
    return gated(x, z);
}
float gelu_tanh_grad_of(float x, float g) {
    x = x < -40.0 ? -40.0 : x > 40.0 ? 40.0 : x;
    precise float square = x * x, z = x * (1.5957691216 + 0.0713548163 * square);
    precise float slope = x * (1.5957691216 + 0.2140644488 * square);
    return gated_grad(slope, z, g);
}
