// The normal distribution's density, and its distribution function (1 + erf(x / sqrt(2))) / 2 to a few float32 eps.
// W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), 631-637.
#ifndef NORMAL_GLSL
#define NORMAL_GLSL
#include "ieee.glsl"

float normal_density(float x) { precise float r = 0.3989422804 * ieee_exp(-0.5 * x * x); return r; }

float normal_cdf(float x) {
    precise float s = 0.7071067812 * x, y = abs(s), z, p, q, r, tail;
    if (!(y > 0.46875)) {  // also NaN
        z = s * s;
        p = (((1.85777706e-1 * z + 3.16112374) * z + 1.13864154e2) * z + 3.77485238e2) * z + 3.20937759e3;
        q = (((z + 2.36012910e1) * z + 2.44024638e2) * z + 1.28261653e3) * z + 2.84423683e3;
        r = 0.5 + 0.5 * s * (p / q);
        return r;
    }
    const float a = y > 10.0 ? 10.0 : y;  // erf(10) is 1
    p = (((((((2.15311535e-8 * a + 5.64188497e-1) * a + 8.88314979) * a + 6.61191906e1) * a
                         + 2.98635138e2) * a + 8.81952221e2) * a + 1.71204761e3) * a + 2.05107838e3) * a + 1.23033935e3;
    q = (((((((a + 1.57449261e1) * a + 1.17693951e2) * a + 5.37181102e2) * a + 1.62138957e3) * a
            + 3.29079924e3) * a + 4.36261909e3) * a + 3.43936767e3) * a + 1.23033935e3;
    tail = 0.5 * exp(-a * a) * (p / q);
    r = x < 0.0 ? tail : 1.0 - tail;
    return r;
}
#endif
