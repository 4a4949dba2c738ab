// The bits of the float32 number of an IEEE half.  As bits: an operation on floats may turn a denormal number into 0,
// or a signalling NaN into a quiet one.
uint half_to_float_bits(uint h) {
    const uint sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, digits = h & 0x3FFu;
    if (exponent == 31u) return sign | 0x7F800000u | digits << 13;
    if (exponent > 0u) return sign | exponent + 112u << 23 | digits << 13;
    return sign | floatBitsToUint(float(digits) * 5.9604644775390625e-8);                 // digits times 2^-24
}
