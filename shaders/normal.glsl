// f times the normal distribution's density, and times its distribution function (1 + erf(x / sqrt(2))) / 2, exact to a
// few eps of themselves: the exponential is taken in two factors, as it may be too small where the product is not.
// functions.glsl includes it, for gelu.
// W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), 631-637.
#ifndef NORMAL_GLSL
#define NORMAL_GLSL
#include "ieee.glsl"

float times_density(float f, float x) {
    precise float root = ieee_exp(-0.25 * x * x), r = f * root * (0.3989422804 * root);
    return r;
}

float times_normal_cdf(float f, float x) {
    precise float s = 0.7071067812 * x, y = abs(s), z, p, q, r, root, tail;
    if (!(y > 0.46875)) {  // also NaN
        z = s * s;
        p = (((1.85777706e-1 * z + 3.16112374) * z + 1.13864154e2) * z + 3.77485238e2) * z + 3.20937759e3;
        q = (((z + 2.36012910e1) * z + 2.44024638e2) * z + 1.28261653e3) * z + 2.84423683e3;
        r = f * (0.5 + 0.5 * s * (p / q));
        return r;
    }
    const float a = y > 15.0 ? 15.0 : y;  // exp, and so the tail, is 0 there, times any number
    p = (((((((2.15311535e-8 * a + 5.64188497e-1) * a + 8.88314979) * a + 6.61191906e1) * a
                         + 2.98635138e2) * a + 8.81952221e2) * a + 1.71204761e3) * a + 2.05107838e3) * a + 1.23033935e3;
    q = (((((((a + 1.57449261e1) * a + 1.17693951e2) * a + 5.37181102e2) * a + 1.62138957e3) * a
            + 3.29079924e3) * a + 4.36261909e3) * a + 3.43936767e3) * a + 1.23033935e3;
    root = exp(-0.5 * a * a);
    tail = 0.5 * root * (p / q);
    r = x < 0.0 ? f * tail * root : f * (1.0 - tail * root);
    return r;
}
#endif
