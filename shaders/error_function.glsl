// The error function.  Included by functions.glsl, behind logarithm.glsl.

// erf x for |x| <= 0.84, by a minimax polynomial of erf(x) / x - 1 in x^2
float small_erf(float x) {
    precise float z = x * x, r = x * (1.0 + ((((((7.85386073e-5 * z - 8.01019371e-4) * z + 5.18832775e-3) * z
                         - 2.6853811e-2) * z + 1.12835854e-1) * z - 3.7612626e-1) * z + 1.28379167e-1));
    return r;
}

// erfc(a) = exp(-a^2) (1 + p(q)) / (1 + 2 a) with q = (a - 2) / (a + 2) for a >= 0, after M. M. Shepherd,
// J. G. Laframboise, Math. Comp. 36 (1981), 249-253.  exp makes the rounding of a^2 100 times as large, so
// it takes that as a second part, with what 1 + p and 1 + 2 a lose
float erfc_of_size(float size) {
    precise float a = size > 11.0 ? 11.0 : size, q = (a - 2.0) / (a + 2.0);
    precise float p = ((((((((-4.00336721e-4 * q - 1.22951693e-3) * q + 1.31347857e-3) * q + 8.63134488e-3) * q
                           - 8.05993285e-3) * q - 5.42042106e-2) * q + 1.64055362e-1) * q - 1.66031435e-1) * q
                       - 9.27639827e-2) * q + 2.76978403e-1;
    precise float over = 1.0 + p, under = 1.0 + 2.0 * a, f = over / under, square = a * a;
    precise float low = (p - (over - 1.0)) - (2.0 * a - (under - 1.0)) * f - lost(a, a, square);
    return exp_times(f, -square, low);
}

// erfinv(x) / x by polynomials of t = log(1 - x^2).  M. Giles, "Approximating the erfinv function", GPU Computing Gems
// Jade (2011), with coefficients of N. Juffa
float erfinv_ratio(float t) {
    precise float near = ((((((((5.43877832e-9 * t + 1.43286059e-7) * t + 1.22775396e-6) * t + 1.12962631e-7) * t
                              - 5.61531961e-5) * t - 1.47697705e-4) * t + 2.31468701e-3) * t + 1.15392562e-2) * t
                          - 2.32015476e-1) * t + 8.86226892e-1;
    precise float far = (((((((3.03697567e-10 * t + 2.93243101e-8) * t + 1.22150334e-6) * t + 2.84108955e-5) * t
                             + 3.93552968e-4) * t + 3.02698812e-3) * t + 4.83185798e-3) * t - 2.64646143e-1) * t
                         + 8.40016484e-1;
    return t < -6.125 ? far : near;
}
