// Functions element by element that no chain has: limits, powers, and dropout with its random numbers.
// contract: a product and a sum may become one operation (ag.h)
#include "philox.h"
#include "rows.h"

typedef uint64_t __attribute__((may_alias)) stream_number;

// ---------------------------------------------------------------------------------------------- limits

// For every block of a result: x and `out`, in float32, of m numbers.
#define BLOCKWISE(...) \
    const span s = share(a->n, BLOCK, part, parts); \
    ALIGNED float memory[3][BLOCK]; \
    for (int64_t b = s.begin; b < s.end; b += BLOCK) { \
        const int64_t m = least(BLOCK, s.end - b); \
        const float *x = wide(a->x, type_of(a->types, 1), b, m, memory[0]); \
        float *out = room(a->out, type_of(a->types, 0), b, memory[1]); \
        __VA_ARGS__ \
        kept(a->out, type_of(a->types, 0), b, m, out); \
    }
#define SLOPE wide(a->g, type_of(a->types, 2), b, m, memory[2])  // what flows back to the result

KERNEL(clamp, { number *out; const number *x; int64_t n; double lo; double hi; int64_t types; }) {
    const float lo = (float)a->lo, hi = (float)a->hi;
    BLOCKWISE(EACH(i, m) {
        const float y = x[i] < lo ? lo : x[i];
        out[i] = y > hi ? hi : y;
    })
}

KERNEL(clamp_grad, { number *out; const number *x; const number *g; int64_t n; double lo; double hi; int64_t types; }) {
    const float lo = (float)a->lo, hi = (float)a->hi;
    BLOCKWISE(const float *g = SLOPE; EACH(i, m) out[i] = g[i] * (float)((x[i] >= lo) & (x[i] <= hi));)
}

// ---------------------------------------------------------------------------------------------- powers

typedef union { double number; uint64_t bits; } real;

// 2^(p log2 x) in double for 0 < x < infinity: log2 x, times a large p, needs more digits than float has.
static inline float positive_power(float x, double p) {
    real y = {(double)x}, power;
    const int64_t e = (int64_t)(y.bits - 0x3FE6A09E667F3BCDull) >> 52;  // x = 2^e m, with m from sqrt(1/2) to sqrt(2)
    y.bits -= (uint64_t)e << 52;
    const double s = (y.number - 1.0) / (y.number + 1.0), q = s * s;  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...)
    const double ln_m = 2.0 * s * (1.0 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11))))));
    const double exact = p * ((double)e + 1.4426950408889634 * ln_m);
    const double t = exact < -200.0 ? -200.0 : exact > 200.0 ? 200.0 : exact;
    const double shifted = t + 0x1.8p52, f = (t - (shifted - 0x1.8p52)) * 0.6931471805599453;  // rounds to an integer
    power.number = shifted;
    power.bits = (power.bits + 1023) << 52;
    const double above = f * (1.0 + f * (1.0 / 2 + f * (1.0 / 6 + f * (1.0 / 24 + f * (1.0 / 120 + f * (1.0 / 720
                         + f * (1.0 / 5040)))))));
    return (float)((1.0 + above) * power.number);
}

// As C's pow for finite p, of which it is given the size of 0^p and whether it is whole, and odd.
static inline float any_power(float x, double p, float of_zero, float of_infinity, int whole, int odd) {
    const float size = __builtin_fabsf(x);
    const float some = size > 0.0f && size < INFINITY_ ? size : 1.0f;
    const float y = size == 0.0f ? of_zero : size == INFINITY_ ? of_infinity : positive_power(some, p);
    const float signed_y = odd && bits_of(x) >> 31 ? -y : y;
    return x != x || (x < 0.0f && size < INFINITY_ && !whole) ? x + __builtin_nanf("") : signed_y;
}

// x^p, in as few operations as the powers that are used most take.
static void power(float *out, const float *x, double p, int64_t n) {
    const float grows = p < 0.0 ? INFINITY_ : 0.0f, shrinks = p < 0.0 ? 0.0f : INFINITY_;
    const int whole = __builtin_floor(p) == p, odd = whole && __builtin_floor(p / 2.0) != p / 2.0;
    if (p == 0.0) EACH(i, n) out[i] = 1.0f;
    else if (p == 1.0) EACH(i, n) out[i] = x[i];
    else if (p == 2.0) EACH(i, n) out[i] = x[i] * x[i];
    else if (p == 3.0) EACH(i, n) out[i] = x[i] * x[i] * x[i];
    else if (p == -1.0) EACH(i, n) out[i] = 1.0f / x[i];
    else if (p == 0.5) EACH(i, n) out[i] = __builtin_sqrtf(x[i]);
    else EACH(i, n) out[i] = any_power(x[i], p, grows, shrinks, whole, odd);
}

KERNEL(pow, { number *out; const number *x; int64_t n; double p; int64_t types; }) { BLOCKWISE(power(out, x, a->p, m);) }

KERNEL(pow_grad, { number *out; const number *x; const number *g; int64_t n; double p; int64_t types; }) {
    const float p = (float)a->p;
    ALIGNED float powers[BLOCK];
    BLOCKWISE(const float *g = SLOPE; power(powers, x, a->p - 1.0, m); if (p != 0.0f) {
        EACH(i, m) out[i] = g[i] * (p * powers[i]);
    } else {
        EACH(i, m) out[i] = g[i] * 0.0f;
    })
}

// ---------------------------------------------------------------------------------------------- random numbers

// The state goes on in one step, as threads may share it; the stream number is its second half.
// work: 1
KERNEL(rng_draw, { uint32_t *out; uint32_t *state; }) {
    if (part) return;
    const uint64_t stream = __atomic_fetch_add((stream_number *)(a->state + 2), 1, __ATOMIC_RELAXED);
    a->out[0] = a->state[0];
    a->out[1] = a->state[1];
    a->out[2] = (uint32_t)stream;
    a->out[3] = (uint32_t)(stream >> 32);
    (void)parts;
}

// out[i] = f of the i-th word of the stream in `key`.
#define DRAW(f) \
    const span s = share(a->n, 4 * BLOCKS, part, parts); \
    uint32_t words[4 * BLOCKS]; \
    for (int64_t b = s.begin; b < s.end; b += 4 * BLOCKS) { \
        const int64_t m = least(4 * BLOCKS, s.end - b); \
        philox(words, a->key, (uint64_t)b / 4, (m + 3) / 4); \
        EACH(i, m) a->out[b + i] = f; \
    }

KERNEL(uniform, { float *out; const uint32_t *key; int64_t n; }) { DRAW((float)(int32_t)(words[i] >> 8) * 0x1p-24f) }

KERNEL(randint, { int32_t *out; const uint32_t *key; int64_t n; int64_t low; int64_t count; }) {
    DRAW((int32_t)(a->low + (int64_t)((uint64_t)words[i] * (uint64_t)a->count >> 32)))
}

KERNEL(dropout, { number *out; const number *x; const uint32_t *key; int64_t n; double rate; int64_t types; }) {
    const float rate = (float)a->rate;
    const double factor = 1.0 / (1.0 - a->rate);
    uint32_t words[BLOCK];
    BLOCKWISE({
        for (int64_t i = 0; i < m; i += 4 * BLOCKS)
            philox(words + i, a->key, (uint64_t)(b + i) / 4, (least(4 * BLOCKS, m - i) + 3) / 4);
        EACH(i, m) out[i] = (float)(x[i] * ((float)(int32_t)(words[i] >> 8) * 0x1p-24f >= rate ? factor : 0.0));
    })
}
