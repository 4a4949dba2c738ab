// Conversions between float32 and 16 bits; in integers, so that every NaN and denormal number is kept.
#include "rows.h"

static inline uint32_t bfloat_bits(uint32_t bits) {
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? bits >> 16 | 0x40u : rounded;
}

static inline uint32_t half_bits(uint32_t bits) {
    const uint32_t size = bits & 0x7FFFFFFFu, sign = bits >> 16 & 0x8000u;
    const uint32_t normal = (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13;
    const uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3F000000u;  // in units of 2^-24, which the sum rounds to
    const uint32_t finite = size < 0x38800000u ? small : size < 0x477FF000u ? normal : 0x7C00u;
    return sign | (size > 0x7F800000u ? 0x7E00u | (bits >> 13 & 0x3FFu) : finite);
}

static inline uint32_t bits_of_half(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, rest = (h & 0x7FFFu) << 13;
    const uint32_t finite = bits_of(float_of(rest) * 0x1p112f);
    return sign | ((h & 0x7C00u) == 0x7C00u ? rest | 0x7F800000u : finite);
}

void ag_to_floats(float *to, const void *from, int64_t n, int type) {
    const half_word *x = from;
    if (type == BFLOATS) EACH(i, n) to[i] = float_of((uint32_t)x[i] << 16);
    else EACH(i, n) to[i] = float_of(bits_of_half(x[i]));
}

void ag_to_halves(void *to, const float *from, int64_t n, int type) {
    half_word *out = to;
    if (type == BFLOATS) EACH(i, n) out[i] = (half_word)bfloat_bits(bits_of(from[i]));
    else EACH(i, n) out[i] = (half_word)half_bits(bits_of(from[i]));
}

#define GRAIN 4096  // elements, about, that a part takes at least

KERNEL(widen, { float *out; const number *x; int64_t n; int64_t types; }) {
    const span s = share(a->n, GRAIN, part, parts);
    const int type = type_of(a->types, 1);
    ag_to_floats(a->out + s.begin, from_at(a->x, type, s.begin), s.end - s.begin, type);
}

KERNEL(narrow, { number *out; const float *x; int64_t n; int64_t types; }) {
    const span s = share(a->n, GRAIN, part, parts);
    const int type = type_of(a->types, 0);
    ag_to_halves(to_at(a->out, type, s.begin), a->x + s.begin, s.end - s.begin, type);
}

void ag_follow(float *master, const float *from, int type, int64_t first, int64_t n) {
    float changed[BLOCK];
    half_word same[BLOCK];
    for (int64_t b = 0; b < n; b += BLOCK, master += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const half_word *x = (const half_word *)from_at(from, type, first + b);
        ag_to_halves(same, master, m, type);
        ag_to_floats(changed, x, m, type);
        int32_t differ = 0;
        EACH(i, m) differ |= same[i] ^ x[i];
        if (differ) EACH(i, m) master[i] = same[i] == x[i] ? master[i] : changed[i];  // writing takes as long as reading
    }
}

KERNEL(reconcile, { float *master; const number *x; int64_t n; int64_t types; }) {
    const span s = share(a->n, GRAIN, part, parts);
    ag_follow(a->master + s.begin, a->x, type_of(a->types, 1), s.begin, s.end - s.begin);
}
