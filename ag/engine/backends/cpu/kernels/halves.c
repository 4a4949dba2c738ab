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

// To bfloat16; none are done if a number is NaN, for which others have no time.
#ifdef __AVX512BW__
static __m512i upper(__m512 x) {
    const __m512i bits = (__m512i)x, odd = _mm512_set1_epi32(0x10000);
    const __m512i even = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, odd);
    return _mm512_srli_epi32(_mm512_mask_add_epi32(even, is_odd, bits, _mm512_set1_epi32(0x8000)), 16);
}
static int64_t some_to_bfloats(half_word *to, const float *x, int64_t n) {
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    __mmask16 nan = 0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
        _mm512_storeu_si512(to + i, _mm512_permutexvar_epi64(order, _mm512_packus_epi32(upper(a), upper(b))));
    }
    return nan ? 0 : i;
}
#elif defined(__AVX2__) && defined(__F16C__)
static __m256i upper(__m256 x) {
    const __m256i bits = (__m256i)x, odd = _mm256_srai_epi32(_mm256_slli_epi32(bits, 15), 31);  // -1 where it is
    return _mm256_srli_epi32(_mm256_sub_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}
static int64_t some_to_bfloats(half_word *to, const float *x, int64_t n) {
    __m256 nan = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm256_permute4x64_epi64(_mm256_packus_epi32(upper(a), upper(b)), 0xD8));
    }
    return _mm256_movemask_ps(nan) ? 0 : i;
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

// Apart from its caller, which gcc would begin with what only this needs.
static __attribute__((noinline)) void take_changed(float *master, const half_word *held, int64_t n, int type) {
    for (int64_t i = 0; i < n; i++)
        if (to_half(master[i], type) != held[i]) master[i] = from_half(held[i], type);
}

void ag_follow(float *master, const half_word *held, int64_t n, int type) {
    ALIGNED half_word rounded[SOON];
    for (int64_t i = 0; i < n; i += SOON) {
        const int64_t m = least(SOON, n - i);
        ag_to_halves(rounded, master + i, m, type);
        if (memcmp(rounded, held + i, (size_t)m * sizeof *held)) take_changed(master + i, held + i, m, type);
    }
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
    ag_follow(a->master + s.begin, (const half_word *)a->x + s.begin, s.end - s.begin, type_of(a->types, 1));
}
