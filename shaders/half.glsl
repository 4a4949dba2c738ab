// Conversions of all elements; `bfloat` chooses bfloat16 over IEEE half precision.
#include "half_bits.glsl"
layout(constant_id = 0) const uint bfloat = 0;

uint to_half_bits(uint bits) {
    return bfloat != 0 ? float_to_bfloat(bits) : float_to_half(bits);
}

uint to_float_bits(uint h) {
    return bfloat != 0 ? h << 16 : half_to_float_bits(h);
}
