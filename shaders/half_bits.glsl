// Conversions between float32 and the 16-bit types, in integers: GLSL's packHalf2x16 may round either way and lose
// denormal numbers.  Rounding is to the nearest, ties to even.
#ifndef HALF_BITS
#define HALF_BITS
uint float_to_bfloat(uint bits) {
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return nan ? bits >> 16 | 0x40u : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

uint float_to_half(uint bits) {
    const uint sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return sign | 0x7E00u | bits >> 13 & 0x3FFu;                   // NaN, with its payload
    if (size >= 0x477FF000u) return sign | 0x7C00u;                                       // from 65520 on: infinite
    if (size >= 0x38800000u) return sign | (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13;
    const uint shift = 126u - (size >> 23), digits = size & 0x7FFFFFu | 0x800000u;        // units of 2^-24
    if (shift > 24u) return sign;
    const uint units = digits >> shift, rest = digits & (1u << shift) - 1u, middle = 1u << shift - 1u;
    return sign | units + uint(rest > middle || rest == middle && (units & 1u) == 1u);
}

// As bits: an operation on floats may turn a denormal number into 0, or a signalling NaN into a quiet one.
uint half_to_float_bits(uint h) {
    const uint sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, digits = h & 0x3FFu;
    if (exponent == 31u) return sign | 0x7F800000u | digits << 13;
    if (exponent > 0u) return sign | exponent + 112u << 23 | digits << 13;
    precise float small = float(digits) * 5.9604644775390625e-8;                          // digits times 2^-24
    return sign | floatBitsToUint(small);
}
#endif
