// x^p with the special cases of C's pow; GLSL's pow is undefined for x < 0 and has few digits for large exponents.
// Small whole powers are products (p = 2, 3, -1 are the ones that are used), p = 1/2 is the square root.  pow and
// pow_grad include it.
#include "ieee.glsl"

float power(float x, float p) {
    if (p == 0.0) return 1.0;
    if (p == 0.5) return sqrt(x);
    const bool whole = floor(p) == p;
    if (whole && abs(p) <= 64.0) {
        float product = 1.0, square = x;
        for (uint bits = uint(abs(p)); bits != 0; bits >>= 1) {
            if ((bits & 1u) != 0) product *= square;
            square *= square;
        }
        return p < 0.0 ? 1.0 / product : product;
    }
    if (isnan(x)) return x;
    if (x < 0.0 && !isinf(x) && !whole) return NOT_A_NUMBER;
    const bool grows = (x == 0.0) == (p < 0.0);
    const float y = x == 0.0 || isinf(x) ? (grows ? INFINITY : 0.0) : pow(abs(x), p);
    const bool negative = floatBitsToUint(x) >> 31 != 0;  // also -0 is
    return negative && whole && mod(p, 2.0) == 1.0 ? -y : y;
}
