// tanh to 2 ulp; the drivers' own loses all digits near 0.  Cephes' tanhf: a polynomial in x^2 below 0.625, beyond it
// the exponential, which may overflow to infinity.  NaN takes the second branch and stays NaN.
#ifndef TANH_GLSL
#define TANH_GLSL
#include "ieee.glsl"

float accurate_tanh(float x) {
    precise float z = x * x, r, y;
    if (z < 0.625 * 0.625)
        r = x + x * z * ((((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z
                          + 1.33314422036e-1) * z - 3.33332819422e-1);
    else {
        y = 1.0 - 2.0 / (ieee_exp(2.0 * abs(x)) + 1.0);
        r = x < 0.0 ? -y : y;
    }
    return r;
}
#endif
