// The elementwise functions: `<name>_of` is what the primitive `<name>` computes.  kernels_build.py writes from each a
// kernel of its own and an instruction of chains.  Operands (a, b) broadcast; (x) is a unary function's; (x, g) and
// (y, g) carry a cotangent g back through a unary function of input x and output y.  What is `const` is a parameter of
// the launch.  All arithmetic is `precise`, also in what these functions call: a chain rounds after every step as
// separate kernels do, and no driver makes one function of two (sigmoid and its gradient have much in common).
#include "tanh.glsl"
#include "normal.glsl"
#include "rounding.glsl"

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

// rounded: x as a 16-bit type keeps it
float rounded_of(float x, const float bfloat) { return bfloat != 0.0 ? rounded_to_bfloat(x) : rounded_to_half(x); }

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

// ---------------------------------------------------------------------------------------- as numpy and torch have them
#include "exponential.glsl"
#include "logarithm.glsl"
#include "trigonometry.glsl"
#include "error_function.glsl"
#include "remainder.glsl"

// Comparisons and logic: 1 or 0; NaN is true.  keep, drop: b where the mask a is true, or false, else 0 whatever b is.
// either: b if a is 0, not -0.0; a sum with 0 would lose the sign of -0.0
float gt_of(float a, float b) { return a > b ? 1.0 : 0.0; }
float ge_of(float a, float b) { return a >= b ? 1.0 : 0.0; }
float lt_of(float a, float b) { return a < b ? 1.0 : 0.0; }
float le_of(float a, float b) { return a <= b ? 1.0 : 0.0; }
float eq_of(float a, float b) { return a == b ? 1.0 : 0.0; }
float ne_of(float a, float b) { return a == b ? 0.0 : 1.0; }
float logical_not_of(float x) { return x == 0.0 ? 1.0 : 0.0; }
float logical_and_of(float a, float b) { return a == 0.0 ? 0.0 : b == 0.0 ? 0.0 : 1.0; }
float logical_or_of(float a, float b) { return a == 0.0 ? b == 0.0 ? 0.0 : 1.0 : 1.0; }
float logical_xor_of(float a, float b) { return a == 0.0 ? b == 0.0 ? 0.0 : 1.0 : b == 0.0 ? 1.0 : 0.0; }
float keep_of(float a, float b) { return a == 0.0 ? 0.0 : b; }
float drop_of(float a, float b) { return a == 0.0 ? b : 0.0; }
float either_of(float a, float b) { return floatBitsToUint(a) == 0u ? b : a; }
float isnan_of(float x) { return isnan(x) ? 1.0 : 0.0; }
float isinf_of(float x) { return isinf(x) ? 1.0 : 0.0; }
float isfinite_of(float x) { return abs(x) < INFINITY ? 1.0 : 0.0; }
float signbit_of(float x) { return floatBitsToUint(x) >> 31 != 0u ? 1.0 : 0.0; }

// Signs and whole numbers.  copysign: a with the sign of b, also of a zero.  round: ties to even
float sign_of(float x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x == 0.0 ? 0.0 : x; }
float copysign_of(float a, float b) {
    return uintBitsToFloat((floatBitsToUint(a) & 0x7FFFFFFFu) | (floatBitsToUint(b) & 0x80000000u));
}
float floor_of(float x) { return floor(x); }
float ceil_of(float x) { return ceil(x); }
float trunc_of(float x) { return trunc(x); }
float frac_of(float x) { precise float r = x - trunc(x); return r; }
float round_of(float x) {
    precise float low = floor(x), rest = x - low, half_low = 0.5 * low, up = low + 1.0;
    const float r = rest > 0.5 ? up : rest < 0.5 ? low : floor(half_low) == half_low ? low : up;
    return abs(x) < 8388608.0 ? copysign_of(r, x) : x;
}

// maximum, minimum: NaN if either is.  fmod: C's.  remainder, floor_divide: Python's %, and // in numpy's steps
float maximum_of(float a, float b) { return a > b ? a : isnan(a) ? a : b; }
float minimum_of(float a, float b) { return a < b ? a : isnan(a) ? a : b; }
float fmod_of(float a, float b) {
    const float r = remainder_of_sizes(isinf(a) ? 0.0 : abs(a), abs(b));
    return isnan(b) ? b : isinf(a) || b == 0.0 ? NOT_A_NUMBER : abs(a) < abs(b) ? a : copysign_of(r, a);
}
float remainder_of(float a, float b) {
    precise float r = fmod_of(a, b), other = r + b;
    return r == 0.0 ? copysign_of(0.0, b) : (r < 0.0 ? b > 0.0 : b < 0.0) ? other : r;
}
float floor_divide_of(float a, float b) {
    precise float r = fmod_of(a, b), ratio = div_of(a, b), less = (r < 0.0 ? b > 0.0 : r > 0.0 && b < 0.0) ? 1.0 : 0.0;
    precise float q = div_of(a - r, b) - less, low = floor(q), y = q - low > 0.5 ? low + 1.0 : low;
    return b == 0.0 ? ratio : q == 0.0 ? copysign_of(0.0, ratio) : y;
}

// Powers and roots.  power: a^b with the special cases of C's pow.  hypot: infinite where either is, also beside NaN
float square_of(float x) { precise float r = x * x; return r; }
float reciprocal_of(float x) { return div_of(1.0, x); }
float rsqrt_of(float x) { precise float r = 1.0 / sqrt_of(x); return r; }
float hypot_of(float a, float b) {
    precise float x = abs(a), y = abs(b), t = size_ratio(x, y), r = maximum_of(x, y) * sqrt(1.0 + t * t);
    return isinf(x) ? x : isinf(y) ? y : r;
}
float power_of(float a, float b) {
    precise float size = abs(a), half_b = 0.5 * b, rise = size < 1.0 ? -b : b;
    const float end = size == 1.0 ? 1.0 : rise > 0.0 ? INFINITY : 0.0;
    const float of_whole = floatBitsToUint(a) >> 31 != 0u && floor(half_b) != half_b ? -1.0 : 1.0;
    const float of_part = a < 0.0 && size < INFINITY ? NOT_A_NUMBER : 1.0;
    precise float y = size == 0.0 || isinf(size) || isinf(b) ? end : power_of_size(size, b);
    precise float r = y * (floor(b) == b ? of_whole : of_part);
    return b == 0.0 || a == 1.0 ? 1.0 : isnan(a) ? a : isnan(b) ? b : r;
}

// Exponentials and logarithms.  expm1: e^x - 1 = 2^n (e^r - 1) + (2^n - 1), where x = n ln 2 + r.  log1p: log(1 + x),
// with what 1 + x loses
float exp2_of(float x) {
    precise float c = x < -160.0 ? -160.0 : x > 130.0 ? 130.0 : x, n = nearest(c);
    precise float p = 1.0 + small_expm1(0.693147181 * (c - n));
    return times_power_of_two(p, n);
}
float expm1_of(float x) {
    precise float c = x < -30.0 ? -30.0 : x > 89.0 ? 89.0 : x, n = nearest(1.44269504 * c);
    precise float p = small_expm1(c - n * 0.693359375 + n * 2.12194440e-4), root = power_of_two(n - 1.0);
    precise float y = 2.0 * ((root - 0.5) + root * p);
    return x == 0.0 ? x : n == 0.0 ? p : y;
}
float log1p_of(float x) {
    precise float sum = 1.0 + x, y = log_sum(sum, x - (sum - 1.0));
    return x == 0.0 ? x : log_or_end(sum, y);
}
float log2_of(float x) { return log_or_end(x, log2_part(x, 0.0)); }
float log10_of(float x) {  // log2 x times log10 2, in parts
    precise float high = log2_part(x, 0.0), first = head(high), rest = (high - first) + log2_part(x, 1.0);
    precise float y = 0.301025390625 * first + (4.6050390e-6 * first + 0.301029996 * rest);
    return log_or_end(x, y);
}

// logaddexp: log(e^a + e^b).  softplus: log(1 + e^(beta x)) / beta.  logsigmoid: -log(1 + e^-x)
float logaddexp_of(float a, float b) {
    precise float r = maximum_of(a, b) + log1p_of_part(exp_times(1.0, a == b ? 0.0 : -abs(a - b), 0.0));
    return r;
}
float softplus_of(float x, const float beta) {
    precise float z = beta * x, low = z < 0.0 && z > -120.0 ? lost(beta, x, z) : 0.0;
    precise float r = (z > 0.0 ? z : 0.0) + log1p_of_part(exp_times(1.0, -abs(z), low));
    return z > 40.0 ? x : div_of(r, beta);
}
float logsigmoid_of(float x) { precise float r = -softplus_of(-x, 1.0); return r; }
// logistic: the loss of a logit a with a target b, (1 - b) max(a, 0) + b max(-a, 0) + log(1 + e^-|a|), and its slope
float logistic_of(float a, float b) {
    precise float r = (1.0 - b) * relu_of(a) + b * relu_of(-a), sum = r + log1p_of_part(exp_times(1.0, -abs(a), 0.0));
    return sum;
}
float logistic_slope_of(float a, float b) {  // sigmoid(a) - b, from the end where a small one keeps its digits
    precise float e = exp_times(1.0, -abs(a), 0.0), small = div_of(e, 1.0 + e);
    precise float above = (1.0 - b) - small, below = small - b;
    return a > 0.0 ? above : below;
}

// Trigonometric functions; sin, cos and tan of sizes from 2^24 on are NaN.  atan2: the angle of the point (b, a)
float sin_of(float x) { return x == 0.0 ? x : turned(x, 0.0); }
float cos_of(float x) { return turned(x, 1.0); }
float tan_of(float x) { precise float r = turned(x, 0.0) / turned(x, 1.0); return x == 0.0 ? x : r; }
float atan2_of(float a, float b) {
    precise float near = angle(abs(a), abs(b)), far = 3.141592654 - near;
    return copysign_of(floatBitsToUint(b) >> 31 != 0u ? far : near, a);
}
float atan_of(float x) { return atan2_of(x, 1.0); }
float asin_of(float x) {
    precise float square = (1.0 - x) * (1.0 + x);
    return atan2_of(x, sqrt_of(square));
}
float acos_of(float x) {
    precise float square = (1.0 - x) * (1.0 + x);
    return atan2_of(sqrt_of(square), x);
}

// Hyperbolic functions, by their definitions; near 0 sinh by Cephes' polynomial, and the inverse ones by log1p
float sinh_of(float x) {
    precise float z = x * x, e = exp_times(0.5, abs(x), 0.0), far = e - 0.25 / e;
    precise float near = x + x * z * ((2.03721912945e-4 * z + 8.33028376239e-3) * z + 1.66667160211e-1);
    return z < 1.0 ? near : copysign_of(far, x);
}
float cosh_of(float x) { precise float e = exp_times(0.5, abs(x), 0.0), r = e + 0.25 / e; return r; }
float log_of_twice(float x) { precise float r = log_sum(x, 0.0) + 0.693147181; return x < INFINITY ? r : x; }
float asinh_of(float x) {
    precise float size = abs(x), z = size * size, near = log1p_of(size + z / (1.0 + sqrt(1.0 + z)));
    return copysign_of(size > 4096.0 ? log_of_twice(size) : near, x);
}
float acosh_of(float x) {
    precise float t = x - 1.0, near = log1p_of(t + sqrt_of(2.0 * t + t * t));
    return x < 1.0 ? NOT_A_NUMBER : x > 4096.0 ? log_of_twice(x) : near;
}
float atanh_of(float x) {
    precise float size = abs(x), r = 0.5 * log1p_of(2.0 * size / (1.0 - size));
    return size > 1.0 ? NOT_A_NUMBER : copysign_of(size == 1.0 ? INFINITY : r, x);
}

// erf, its complement and its inverse
float erf_of(float x) {
    precise float far = 1.0 - erfc_of_size(abs(x));
    return abs(x) < 0.84 ? small_erf(x) : copysign_of(far, x);
}
float erfc_of(float x) {
    precise float near = 1.0 - small_erf(x), far = erfc_of_size(abs(x)), negative = 2.0 - far;
    return abs(x) < 0.5 ? near : x < 0.0 ? negative : far;
}
float erfinv_of(float x) {
    precise float r = x * erfinv_ratio(log_sum((1.0 - x) * (1.0 + x), 0.0)), end = x * INFINITY;
    return abs(x) < 1.0 ? r : abs(x) == 1.0 ? end : NOT_A_NUMBER;
}

// Activations as torch.nn.functional has them
float relu6_of(float x) { return x < 0.0 ? 0.0 : x > 6.0 ? 6.0 : x; }
float hardsigmoid_of(float x) { precise float r = relu6_of(x + 3.0) / 6.0; return r; }
float hardswish_of(float x) { precise float r = x * (relu6_of(x + 3.0) / 6.0); return r; }
float elu_of(float x, const float alpha) { precise float r = alpha * expm1_of(x); return x > 0.0 ? x : r; }
float celu_of(float x, const float alpha) {
    precise float r = alpha * expm1_of(div_of(x, alpha));
    return x > 0.0 ? x : r;
}
float selu_of(float x) { precise float r = x > 0.0 ? 1.0507009874 * x : 1.7580993408 * expm1_of(x); return r; }
float softshrink_of(float x, const float lambd) {
    precise float r = x > lambd ? x - lambd : x < -lambd ? x + lambd : isnan(x) ? x : 0.0;
    return r;
}
float hardshrink_of(float x, const float lambd) { return abs(x) > lambd ? x : isnan(x) ? x : 0.0; }
float softsign_of(float x) { precise float size = 1.0 + abs(x); return div_of(x, size); }
float mish_of(float x) {  // x tanh(log(1 + e)) = x e (e + 2) / (e (e + 2) + 2) where e = exp(x)
    precise float e = exp_times(1.0, x > 40.0 ? 40.0 : x, 0.0);
    precise float r = exp_times(x, x, 0.0) * ((e + 2.0) / (e * (e + 2.0) + 2.0));
    return x > 40.0 ? x : isinf(x) ? NOT_A_NUMBER : x < -120.0 ? -0.0 : r;
}
float tanhshrink_of(float x) {  // x - tanh x; where digits cancel, by a polynomial of x^3 / (x - tanh x)
    precise float z = x * x, far = x - accurate_tanh(x), p = ((((4.39006413e-7 * z - 1.18391044e-5) * z
                              + 2.53575447e-4) * z - 5.71409473e-3) * z + 1.199999973) * z + 3.0, near = x * z / p;
    return z < 2.25 ? near : far;
}
