// The exact remainder of a division: a turn takes away b times up to eleven bits of the quotient.  Included by
// functions.glsl, behind logarithm.glsl.

// For finite a >= 0 and b >= 2^-80.  q times half of the digits is exact, and so are the differences, as q is nearest
float normal_remainder(float a, float b) {
    const float b_exponent = binary_exponent(b), b_mantissa = mantissa(b);
    precise float r = a;
    for (int turn = 0; turn < 30 && r >= b; turn++) {
        precise float e = binary_exponent(r) - 10.0, part = e > b_exponent ? b_mantissa * power_of_two(e) : b;
        precise float q = floor(r / part + 0.5), part_head = head(part);
        precise float rest = r - q * part_head - q * (part - part_head);
        r = rest < 0.0 ? rest + part : rest;
    }
    return r;
}

// |a| mod |b| for finite a.  A large a is made smaller, as products exceed it; a small b is made normal, behind the
// remainder by a large multiple of it
float remainder_of_sizes(float a, float b) {
    precise float less = a > 1.0e30 ? 0.0009765625 : 1.0, more = b < 8.6736174e-19 ? 1.2089258196146292e24 : 1.0;
    precise float divisor = b * more, first = normal_remainder(a * less, divisor * less) / less;
    precise float r = normal_remainder(first * more, divisor) / more;
    return r;
}
