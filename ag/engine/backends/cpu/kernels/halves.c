// Conversions between float32 and 16 bits.
#include "rows.h"

// By the processor's instructions where gcc makes none of them, or too many: how many are done.
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
static int64_t eights_to_floats(float *to, const half_word *x, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(x + i))));
    return i;
}
static int64_t eights_to_halves(half_word *to, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i_u *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 8));
    return i;
}
#else
static int64_t eights_to_floats(float *to, const half_word *x, int64_t n) { return 0 * n; }
static int64_t eights_to_halves(half_word *to, const float *x, int64_t n) { return 0 * n; }
#endif

#ifdef __AVX512BW__
static __m512i sixteen_rounded(const float *from) {  // as bfloat_bits
    const __m512 x = _mm512_loadu_ps(from);
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_set1_epi32(0x10000), quiet = _mm512_set1_epi32(0x400000);
    const __m512i even = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
    const __m512i whole = _mm512_mask_add_epi32(even, _mm512_test_epi32_mask(bits, odd), bits, _mm512_set1_epi32(0x8000));
    return _mm512_srli_epi32(_mm512_mask_or_epi32(whole, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, quiet), 16);
}
static int64_t some_to_bfloats(half_word *to, const float *x, int64_t n) {
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512i both = _mm512_packus_epi32(sixteen_rounded(x + i), sixteen_rounded(x + i + 16));
        _mm512_storeu_si512(to + i, _mm512_permutexvar_epi64(order, both));
    }
    return i;
}
#else
static int64_t some_to_bfloats(half_word *to, const float *x, int64_t n) { return 0 * n; }
#endif

void ag_to_floats(float *to, const void *from, int64_t n, int type) {
    const half_word *x = from;
    if (type == BFLOATS) EACH(i, n) to[i] = from_half(x[i], BFLOATS);
    else for (int64_t i = eights_to_floats(to, x, n); i < n; i++) to[i] = from_half(x[i], HALVES);
}

void ag_to_halves(void *to, const float *from, int64_t n, int type) {
    half_word *out = to;
    if (type == BFLOATS) for (int64_t i = some_to_bfloats(out, from, n); i < n; i++) out[i] = to_half(from[i], BFLOATS);
    else for (int64_t i = eights_to_halves(out, from, n); i < n; i++) out[i] = to_half(from[i], HALVES);
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

KERNEL(reconcile, { float *master; const number *x; int64_t n; int64_t types; }) {
    const span s = share(a->n, GRAIN, part, parts);
    const half_word *x = (const half_word *)a->x + s.begin;
    float *master = a->master + s.begin;
    const int64_t n = s.end - s.begin;
    if (type_of(a->types, 1) == BFLOATS) EACH(i, n) master[i] = followed(master[i], x[i], BFLOATS);
    else EACH(i, n) master[i] = followed(master[i], x[i], HALVES);
}
