// Operands of products, and how their numbers are stored: in float32, in 16 bits, or in blocks as GGUF has them.
// Blocks lie in planes, each of all rows: quants first, then what scales them.  Numbers become float32 where a product
// packs an operand anyway, so no float32 copy of it is ever in memory, and a product has the bits of float32's.
//
//     type         at        plane[0]              plane[1]                 plane[2]
//     Q8_0         bytes     a half for a block
//     Q4_0, Q4_1   nibbles   a half for a block    an offset, likewise
//     Q4_K         nibbles   a byte for a block    one for its offset       two halves for 8 blocks
//     Q6_K         nibbles   2 bits more           2 bytes for a block      a half for 8 blocks
#ifndef STORED_H
#define STORED_H
#include "tiles.h"

enum { F32, BF16, F16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K };
enum { BLOCK_OF = 32 };  // numbers of a block; of nibbles, byte j has numbers j and j + 16

// Whether numbers are loaded in whole blocks.
INLINE int in_blocks(const operand *x) { return x->type >= Q8_0; }

// `count` numbers of each row, of which the first one's begin with number `first`; both are multiples of BLOCK_OF if
// numbers are in blocks.  Rows of `to` are `pitch` floats apart.
HIDDEN void ag_load_rows(float *to, int64_t pitch, const operand *x, int64_t first, int64_t rows, int64_t count);

static inline void ag_load(float *to, const operand *x, int64_t first, int64_t count) {
    ag_load_rows(to, 0, x, first, 1, count);
}

// Number `i`.
HIDDEN float ag_number(const operand *x, int64_t i);

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
INLINE float of_half(uint16_t h) { return _cvtsh_ss(h); }
#else
INLINE float of_half(uint16_t h) { return from_half(h, HALVES); }
#endif

// gcc makes slow code of __builtin_convertvector from 8 bytes: 2 cycles per number.
#if WIDTH == 16
INLINE reg of_bytes(const void *q) {
    return (reg)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(q)));
}
INLINE reg of_eights(const uint64_t *q, int i) {  // the i-th WIDTH bytes, where loading would wait for storing
    return (reg)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_set_epi64x((int64_t)q[2 * i + 1], (int64_t)q[2 * i])));
}
INLINE void of_nibbles(const uint8_t *q, reg *low, reg *high) {  // of WIDTH bytes
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)q));
    *low = (reg)_mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(15)));
    *high = (reg)_mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4));
}
INLINE reg of_uppers(const uint16_t *x) {
    return (reg)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x)), 16);
}
INLINE reg of_halves(const uint16_t *x) { return (reg)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x)); }
INLINE reg of_scale(uint16_t h) { return (reg)_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)h)); }  // in all lanes
#elif WIDTH == 8 && defined(__AVX2__) && defined(__F16C__)
INLINE reg of_bytes(const void *q) {
    return (reg)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(q)));
}
INLINE reg of_eights(const uint64_t *q, int i) {
    return (reg)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)q[i])));
}
INLINE void of_nibbles(const uint8_t *q, reg *low, reg *high) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)q));
    *low = (reg)_mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32(15)));
    *high = (reg)_mm256_cvtepi32_ps(_mm256_srli_epi32(wide, 4));
}
INLINE reg of_uppers(const uint16_t *x) {
    return (reg)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)x)), 16);
}
INLINE reg of_halves(const uint16_t *x) { return (reg)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x)); }
INLINE reg of_scale(uint16_t h) { return (reg)_mm256_cvtph_ps(_mm_set1_epi16((int16_t)h)); }
#else
INLINE reg of_bytes(const void *q) {
    reg r;
    for (int i = 0; i < WIDTH; i++) r[i] = (float)((const int8_t *)q)[i];
    return r;
}
INLINE reg of_eights(const uint64_t *q, int i) { return of_bytes((const int8_t *)q + WIDTH * i); }
INLINE void of_nibbles(const uint8_t *q, reg *low, reg *high) {
    for (int i = 0; i < WIDTH; i++) {
        (*low)[i] = (float)(q[i] & 15);
        (*high)[i] = (float)(q[i] >> 4);
    }
}
INLINE reg of_uppers(const uint16_t *x) {
    reg r;
    for (int i = 0; i < WIDTH; i++) r[i] = float_of((uint32_t)x[i] << 16);
    return r;
}
INLINE reg of_scale(uint16_t h) { return (reg){0} + of_half(h); }
INLINE reg of_halves(const uint16_t *x) {
    reg r;
    for (int i = 0; i < WIDTH; i++) r[i] = of_half(x[i]);
    return r;
}
#endif

// Block `b` of Q6_K, whose numbers are -32 to 31, as bytes.
INLINE void bytes_of_q6(uint64_t to[4], const operand *x, int64_t b) {
    uint64_t low[2], high;
    memcpy(low, (const uint8_t *)x->at + 16 * b, sizeof low);
    memcpy(&high, (const uint8_t *)x->plane[0] + 8 * b, sizeof high);
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++)  // 8 numbers each; 0x80 keeps borrows in their bytes, and comes off again
        to[t] = ((((low[t & 1] >> 2 * (t & 2)) & 0x0F0F0F0F0F0F0F0Fu) | ((high >> 2 * t) & 0x0303030303030303u) << 4 |
                  0x8080808080808080u) - 0x2020202020202020u) ^ 0x8080808080808080u;
}

// Block `b` in registers, in order.
INLINE void load_block(int type, const operand *x, int64_t b, reg *to) {
    enum { REGS = BLOCK_OF / WIDTH };
    const uint16_t *halves = (const uint16_t *)x->plane[type < Q4_K ? 0 : 2];
    if (type == Q8_0) {
        const reg d = of_scale(halves[b]);
#pragma GCC unroll 8
        for (int i = 0; i < REGS; i++) to[i] = of_bytes((const int8_t *)x->at + BLOCK_OF * b + WIDTH * i) * d;
    } else if (type == Q6_K) {
        const int8_t *factors = (const int8_t *)x->plane[1] + 2 * b;
        const float d = of_half(halves[b / 8]), first = d * (float)factors[0], second = d * (float)factors[1];
        uint64_t q[4];
        bytes_of_q6(q, x, b);
#pragma GCC unroll 8
        for (int i = 0; i < REGS; i++) to[i] = of_eights(q, i) * (2 * i < REGS ? first : second);
    } else {
        reg d, m = {0};
        if (type == Q4_K) {  // products of these are exact, so that it does not matter whether they are contracted
            d = of_scale(halves[b / 8 * 2]) * (float)((const uint8_t *)x->plane[0])[b];
            m = -of_scale(halves[b / 8 * 2 + 1]) * (float)((const uint8_t *)x->plane[1])[b];
        } else {
            d = of_scale(halves[b]);
            if (type == Q4_1) m = of_scale(((const uint16_t *)x->plane[1])[b]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < REGS / 2; i++) {
            reg low, high;
            of_nibbles((const uint8_t *)x->at + BLOCK_OF / 2 * b + WIDTH * i, &low, &high);
            to[i] = type == Q4_0 ? (low - 8.0f) * d : low * d + m;
            to[REGS / 2 + i] = type == Q4_0 ? (high - 8.0f) * d : high * d + m;
        }
    }
}

// Registers of consecutive numbers from number `i` on: BLOCK_OF of them if they are in blocks, else WIDE.
INLINE void load_regs(int type, const operand *x, int64_t i, reg *to) {
    if (type >= Q8_0) load_block(type, x, (int64_t)((uint64_t)i / BLOCK_OF), to);  // no rounding towards 0
#pragma GCC unroll 2
    for (int j = 0; j < 2 && type < Q8_0; j++)
        to[j] = type == F32 ? get((const float *)x->at + i + j * WIDTH) :
                type == BF16 ? of_uppers((const uint16_t *)x->at + i + j * WIDTH) :
                               of_halves((const uint16_t *)x->at + i + j * WIDTH);
}

// Asks for what lies a page behind number `i`: the processor alone asks for too little where rows have few bytes.
INLINE void expect_quants(int type, const operand *x, int64_t i) {
    const int64_t bits = type < Q8_0 ? 16 : type == Q8_0 ? 8 : 4;
    if (type) __builtin_prefetch((const char *)x->at + i * bits / 8 + 4096);
}

#define AT_A_TIME(type) ((type) >= Q8_0 ? BLOCK_OF : WIDE)  // numbers of load_regs

// Calls f(type, ...) so that the compiler knows the type of an operand.
#define OF_TYPE(x, f, ...) \
    switch ((x)->type) { \
        case F32: f(F32, __VA_ARGS__); break; \
        case BF16: f(BF16, __VA_ARGS__); break; \
        case F16: f(F16, __VA_ARGS__); break; \
        case Q8_0: f(Q8_0, __VA_ARGS__); break; \
        case Q4_0: f(Q4_0, __VA_ARGS__); break; \
        case Q4_1: f(Q4_1, __VA_ARGS__); break; \
        case Q4_K: f(Q4_K, __VA_ARGS__); break; \
        default: f(Q6_K, __VA_ARGS__); \
    }

#endif
