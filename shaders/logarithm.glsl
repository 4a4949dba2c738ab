// Logarithms and powers: Cephes' logf, and log2 in two parts where a float's digits do not do.  Included by
// functions.glsl, behind exponential.glsl.

// x = 2^e m of a normal x > 0, with m from sqrt(1/2) to sqrt(2)
float binary_exponent(float x) {
    precise float e = uintBitsToFloat(((floatBitsToUint(x) + 0x004AFB0Du) >> 23) | 0x4B000000u) - 8388735.0;
    return e;
}
float mantissa(float x) {
    return uintBitsToFloat(((floatBitsToUint(x) + 0x004AFB0Du) & 0x007FFFFFu) + 0x3F3504F3u);
}

// What a logarithm v of x is: that only for 0 < x < infinity.  A sum, as compilers make no vectors of long choices
float log_or_end(float x, float v) {
    precise float end = x > 0.0 ? 0.0 : x == 0.0 ? -INFINITY : NOT_A_NUMBER, r = (x < INFINITY ? v : x) + end;
    return r;
}

// log(2^e (1 + z)) for 1 + z from sqrt(1/2) to sqrt(2)
float log_near(float z, float e) {
    precise float square = z * z, low_terms = (2.0000714765e-1 - 1.6668057665e-1 * z) * square
                                              + (3.3333331174e-1 - 2.4999993993e-1 * z);
    precise float high_terms = (7.0376836292e-2 * square + (1.1676998740e-1 - 1.1514610310e-1 * z)) * square
                               + (1.4249322787e-1 - 1.2420140846e-1 * z);
    precise float p = high_terms * (square * square) + low_terms;
    precise float rest = p * (z * square) - 2.12194440e-4 * e - 0.5 * square, y = z + rest + 0.693359375 * e;
    return y;
}

// log(x + low), x normal and low below its last bit
float log_sum(float x, float low) {
    precise float e = binary_exponent(x), z = (mantissa(x) - 1.0) + low * power_of_two(e > 126.0 ? -126.0 : -e);
    return log_near(z, e);
}

// log(1 + x) for x from 0 to 1
float log1p_of_part(float x) {
    precise float z = x > 0.414213562 ? 0.5 * x - 0.5 : x;
    return log_near(z, x > 0.414213562 ? 1.0 : 0.0);
}

// log2 x to 2^-31 of itself, as the sum of two floats, the second of which is returned where `low` is 1: e + log2 m,
// and log2 m = 2 / ln 2 (s + s^3 / 3 + s^5 / 5 ...) with s = (m - 1) / (m + 1)
float log2_part(float x, const float low) {
    precise float y = x < 1.17549435e-38 ? x * 16777216.0 : x, r = mantissa(y) - 1.0, t = 2.0 + r, t_head = head(t);
    precise float e = binary_exponent(y) - (x < 1.17549435e-38 ? 24.0 : 0.0), s = head(r / t);
    precise float rest = (r - s * t_head - s * ((2.0 - t_head) + r)) / t, sum = s + rest, z = sum * sum;
    precise float tail = rest * 2.88539008 - 3.52105722e-4 * s + sum * z * ((((0.262308189 * z + 0.320598898) * z
                         + 0.412198583) * z + 0.577078016) * z + 0.961796694), first = 2.8857421875 * s;
    precise float big = e + first, small = (first - (big - e)) + tail, high = big + small;
    precise float rounded = small - (high - big);
    return low == 0.0 ? high : rounded;
}

// |a|^b = 2^(b log2 |a|) for finite a and b, a not 0.  The product has parts: its fraction needs all digits of a float
float power_of_size(float size, float b) {
    precise float high = log2_part(size, 0.0), low = log2_part(size, 1.0), y = b * high, a_head = head(high);
    precise float c = y < -200.0 ? -200.0 : y > 200.0 ? 200.0 : y, n = nearest(c), b_head = head(b);
    precise float f = (b_head * a_head - n) + (b_head * (high - a_head) + (b - b_head) * high + b * low);
    precise float p = 1.0 + small_expm1(0.693147181 * (abs(y) < 200.0 ? f : 0.0));
    return times_power_of_two(p, n);
}
