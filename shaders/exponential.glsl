// Powers of e and 2 to 1 ulp; GLSL allows the drivers' exp 3 + 2 |x| ulp.  Included by functions.glsl.
// S. L. Moshier's Cephes, expf, with the reduction by ln 2 in two parts of W. J. Cody, W. Waite, "Software Manual for
// the Elementary Functions" (1980).

// The first 12 bits of x: products of two such numbers are exact
float head(float x) { return uintBitsToFloat(floatBitsToUint(x) & 0xFFFFF000u); }

// What a b has more than its rounded value
float lost(float a, float b, float rounded) {
    precise float h = head(a), k = head(b), r = (h * k - rounded) + (h * (b - k) + (a - h) * k) + (a - h) * (b - k);
    return r;
}

// The whole number next to x, |x| < 2^22, and 2^n of a whole n from -126 to 127: in floats near 1.5 2^23 the last bits
// are an integer
float nearest(float x) { precise float sum = x + 12582912.0, n = sum - 12582912.0; return n; }
float power_of_two(float n) {
    precise float sum = n + 12582912.0;
    return uintBitsToFloat((floatBitsToUint(sum) << 23) + 0x3F800000u);
}

// f 2^n in two factors, as 2^n may be no float where the result is one
float times_power_of_two(float f, float n) {
    precise float half_n = nearest(0.5 * n), r = f * power_of_two(half_n) * power_of_two(n - half_n);
    return r;
}

// e^r - 1 for |r| <= ln(2) / 2.  Here and in logarithms, short sums of a polynomial's terms do not wait for each other
float small_expm1(float r) {
    precise float z = r * r, low = 1.6666665459e-1 * r + 5.0000001201e-1, more = 8.3334519073e-3 * r + 4.1665795894e-2;
    precise float p = ((1.9875691500e-4 * r + 1.3981999507e-3) * z + more) * z + low, y = z * p + r;
    return y;
}

// f e^(x + low) for a low that is small
float exp_times(float f, float x, float low) {
    precise float c = x < -120.0 ? -120.0 : x > 100.0 ? 100.0 : x, n = nearest(1.44269504 * c);
    precise float r = c - n * 0.693359375 + (n * 2.12194440e-4 + low), y = f * (1.0 + small_expm1(r));
    return times_power_of_two(y, n);
}
