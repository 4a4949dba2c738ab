// float32 rounded to what the 16-bit types keep, to the nearest, ties to even, as half.glsl stores it.
float rounded_to_bfloat(float x) {
    const uint bits = floatBitsToUint(x);
    return isnan(x) ? x : uintBitsToFloat((bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
}

float rounded_to_half(float x) {
    const uint bits = floatBitsToUint(x);
    precise float size = abs(x), small = (size + 0.5) - 0.5;  // a multiple of 2^-24
    const float normal = uintBitsToFloat((floatBitsToUint(size) + 0xFFFu + (bits >> 13 & 1u)) & 0xFFFFE000u);
    const float large = size < 65520.0 ? normal : uintBitsToFloat(0x7F800000u);
    const float kept = isnan(x) ? x : size < 6.103515625e-5 ? small : large;
    return uintBitsToFloat(floatBitsToUint(kept) | bits & 0x80000000u);
}
