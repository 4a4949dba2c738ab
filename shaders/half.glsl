// Conversions between float32 and the 16-bit types, in integers: GLSL's packHalf2x16 may round either way and lose
// denormal numbers.  Rounding is to the nearest, ties to even.  `bfloat` chooses bfloat16 over IEEE half precision.
layout(constant_id = 0) const uint bfloat = 0;
#include "half_bits.glsl"

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

uint to_half_bits(uint bits) {
    return bfloat != 0 ? float_to_bfloat(bits) : float_to_half(bits);
}

uint to_float_bits(uint h) { return bfloat != 0 ? h << 16 : half_to_float_bits(h); }
