// Numbers of a packed matrix, as float32: ag/engine/kernels/packing.py says how they lie in words.  The kernel declares
// `words`, their place words_at, the starts `planes` of the planes behind the quants, and `type`, a constant.
// Products of a quant and its scales are exact, so that it does not matter how a driver makes them.
#include "half_bits.glsl"
const uint BF16 = 1, F16 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q4_K = 6, Q6_K = 7;

uint short_of(uint plane, uint i) { return words[words_at + plane + i / 2] >> 16 * (i & 1) & 0xFFFF; }
uint byte_of(uint plane, uint i) { return words[words_at + plane + i / 4] >> 8 * (i & 3) & 0xFF; }
float scale_of(uint plane, uint i) { return uintBitsToFloat(half_to_float_bits(short_of(plane, i))); }
vec4 bytes_of(uint word) { return vec4(uvec4(word, word >> 8, word >> 16, word >> 24) & 0xFF); }

float number_of_short(uint i) {
    const uint h = short_of(0, i);
    return uintBitsToFloat(type == BF16 ? h << 16 : half_to_float_bits(h));
}

// Four numbers of a block from number i on, a multiple of 4.
vec4 numbers_of_block(uint i) {
    const uint b = i / 32, j = i & 31;
    if (type == Q8_0) {
        const int word = int(words[words_at + i / 4]);
        return vec4(ivec4(word << 24, word << 16, word << 8, word) >> 24) * scale_of(planes[0], b);
    }
    const uint low = words[words_at + 4 * b + (j & 15) / 4] >> (j / 16 * 4) & 0x0F0F0F0Fu;
    if (type == Q4_0) return (bytes_of(low) - 8.0) * scale_of(planes[0], b);
    if (type == Q4_1) return bytes_of(low) * scale_of(planes[0], b) + scale_of(planes[1], b);
    if (type == Q4_K) {
        const float d = scale_of(planes[2], b / 8 * 2) * float(byte_of(planes[0], b));
        const float m = scale_of(planes[2], b / 8 * 2 + 1) * float(byte_of(planes[1], b));
        return bytes_of(low) * d - m;
    }
    const uint high = words[words_at + planes[0] + 2 * b + (j & 7) / 4] >> (j / 8 * 2) & 0x03030303u;
    const int factor = int(byte_of(planes[1], 2 * b + j / 16) << 24) >> 24;
    return (bytes_of(low | high << 4) - 32.0) * (scale_of(planes[2], b / 8) * float(factor));
}

// Four numbers from number i on, of which so many are there; 0 in place of the others.
vec4 numbers_at(uint i, uint count) {
    if (type > F16) return count > 0 ? numbers_of_block(count > 0 ? i : 0) : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) found[c] = c < count ? number_of_short(c < count ? i + c : 0) : 0.0;
    return found;
}
