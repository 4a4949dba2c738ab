// Numbers of 16 bits, which kernels convert where they read and write them; they compute in float32.
// A kernel with a number `types` takes them: two bits for each operand, in order, say what lies there.  Such operands are
// declared as `number`, whose addresses count floats: only the functions here follow them.
#ifndef HALVES_H
#define HALVES_H
#include "ag.h"

enum { FLOATS = 0, BFLOATS = 1, HALVES = 2 };

typedef uint16_t __attribute__((may_alias)) half_word;

static inline int type_of(int64_t types, int operand) { return (int)(types >> 2 * operand & 3); }
static inline int64_t bytes_of(int type) { return type ? 2 : 4; }

// One conversion; in integers, so that every NaN and denormal number is kept.
static inline uint32_t rounded_bits(float x) {  // whose upper half a bfloat16 is
    const uint32_t bits = bits_of(x);
    return x != x ? bits | 0x400000u : bits + 0x7FFFu + (bits >> 16 & 1u);
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

static inline half_word to_half(float x, int type) {
    return (half_word)(type == BFLOATS ? rounded_bits(x) >> 16 : half_bits(bits_of(x)));
}
static inline float from_half(half_word h, int type) {
    return float_of(type == BFLOATS ? (uint32_t)h << 16 : bits_of_half(h));
}

// Where element i lies.
static inline const float *from_at(const float *x, int type, int64_t i) {
    return type ? (const float *)((const half_word *)x + i) : x + i;
}
static inline float *to_at(float *x, int type, int64_t i) { return type ? (float *)((half_word *)x + i) : x + i; }

// n numbers to float32, and to 16 bits, rounded to the nearest, ties to even; `to` lies elsewhere.
HIDDEN void ag_to_floats(float *to, const void *from, int64_t n, int type);
HIDDEN void ag_to_halves(void *to, const float *from, int64_t n, int type);

// Where a master does not round to what is held, somebody changed that: it is the master from now on.
HIDDEN void ag_follow(float *master, const half_word *held, int64_t n, int type);

// n numbers from element `first` on, where they lie or converted to `into`.
static inline const float *wide(const float *x, int type, int64_t first, int64_t n, float *into) {
    if (!type) return x + first;
    ag_to_floats(into, from_at(x, type, first), n, type);
    return into;
}

// The same, of an operand that is gone through.
static inline const float *next_wide(const float *x, int type, int64_t first, int64_t n, float *into) {
    expect(from_at(x, type, first), n * bytes_of(type));
    return wide(x, type, first, n, into);
}

// The same, always to `into`.
static inline void take_floats(float *into, const float *x, int type, int64_t first, int64_t n) {
    if (type) ag_to_floats(into, from_at(x, type, first), n, type);
    else memcpy(into, x + first, (size_t)n * sizeof *into);
}

static inline float number_at(const float *x, int type, int64_t i) {
    return type ? from_half(((const half_word *)x)[i], type) : x[i];
}

static inline void put_at(float *out, int type, int64_t i, float x) {
    if (type) ((half_word *)out)[i] = to_half(x, type);
    else out[i] = x;
}

// Where to make n results, and `kept` brings them where they belong.
static inline float *room(float *out, int type, int64_t first, float *into) { return type ? into : out + first; }
static inline void kept(float *out, int type, int64_t first, int64_t n, const float *made) {
    if (type) ag_to_halves(to_at(out, type, first), made, n, type);
}
#endif
