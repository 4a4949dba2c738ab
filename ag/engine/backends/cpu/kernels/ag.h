// For every kernel of the CPU: how one is declared and shares its work, vectors, exp and log.
// A kernel computes the primitive of its name.  Its arguments are 8-byte members, read by tools/cpu_kernels.py: a pointer
// per operand, in order, then numbers by name, out of the primitive's parameters and its layout:
//
//     KERNEL(twice, { float *out; const float *x; int64_t n; }) {
//         const span s = share(a->n, 16, part, parts);
//         for (int64_t i = s.begin; i < s.end; i++) a->out[i] = 2 * a->x[i];
//     }
//
// A kernel makes part `part` of `parts`; its results must not depend on `parts`: sums are cut at fixed places.  a * b + c
// is not contracted, as chains must have the bits of separate kernels, unless a line begins with `// contract`.
#ifndef AG_H
#define AG_H
#include <stdint.h>
#include <stddef.h>
#include <string.h>

typedef float number;  // of operands that may have 16 bits (halves.h)

#define KERNEL(name, fields) \
    typedef struct fields name##_args; \
    void ag_##name(const name##_args *a, int64_t part, int64_t parts); \
    void ag_##name(const name##_args *a, int64_t part, int64_t parts)

// ---------------------------------------------------------------------------------------------- shares of work

enum { PARTS_PER_THREAD = 4 };  // where several make a launch (run.c); neighbours are the same thread's

typedef struct { int64_t begin, end; } span;

// Part `part` of n items, cut at multiples of `grain`.
static inline span share(int64_t n, int64_t grain, int64_t part, int64_t parts) {
    const int64_t grains = (n + grain - 1) / grain;
    const int64_t begin = grains * part / parts * grain, end = grains * (part + 1) / parts * grain;
    return (span){begin < n ? begin : n, end < n ? end : n};
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// At least `count` floats of the calling thread, aligned to 64 bytes, until its next call; NULL where memory ends.
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN float *ag_scratch(int64_t count);

// ---------------------------------------------------------------------------------------------- vectors of 16 floats

#define LANES 16
#define ALIGNED _Alignas(64)  // buffers whose vectors lie in one cache line each
typedef float vec __attribute__((vector_size(64)));
typedef float loose_vec __attribute__((vector_size(64), aligned(4), may_alias));

static inline vec load(const float *x) { return *(const loose_vec *)x; }
static inline void store(float *x, vec v) { *(loose_vec *)x = v; }
static inline vec splat(float x) { return (vec){0} + x; }

// The sum of the lanes, in the order of a tree.
static inline float added(vec v) {
    float x[LANES];
    store(x, v);
    for (int i = 0; i < 8; i++) x[i] += x[i + 8];
    for (int i = 0; i < 4; i++) x[i] += x[i + 4];
    return (x[0] + x[2]) + (x[1] + x[3]);
}

// ---------------------------------------------------------------------------------------------- memory

#define SOON 128  // numbers that are computed between two requests for memory
#define MANY (1 << 18)  // floats that fit the second-level cache
enum { AHEAD = 2048 };  // bytes

// Asks for what lies a bit behind these bytes while their numbers are computed.  The processor does so by itself where
// little is computed per number; where much is, it would compute, wait for memory, compute, and so on.
static inline void expect(const void *x, int64_t bytes) {
    for (int64_t i = AHEAD; i < AHEAD + bytes; i += 64) __builtin_prefetch((const char *)x + i);
}

// ---------------------------------------------------------------------------------------------- exp and log
// Cephes' expf and logf, without branches, so that the compiler makes vectors of loops over them.

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, sizeof b); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, sizeof x); return x; }
static inline float two_to(int32_t n) { return float_of((uint32_t)(n + 127) << 23); }

// e^c without its power of two, whose exponent is `n`.
static inline float fraction_of_exp(float c, int32_t *n) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which lies in the low bits then
    const float t = c * 1.44269504f + magic, f = t - magic;
    const float r = c - f * 0.693359375f + f * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    *n = (int32_t)(bits_of(t) - 0x4B400000u);
    return p * (r * r) + r + 1.0f;
}

static inline float exp_(float x) {
    int32_t n;
    const float p = fraction_of_exp(x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x, &n);
    return p * two_to(n >> 1) * two_to(n - (n >> 1));  // in two factors, as 2^n may be no float where the result is one
}

// The same up to 88, faster, and 0 instead of numbers below the least normal one.
static inline float weight_of(float x) {
    int32_t n;
    const float p = fraction_of_exp(x < -88.0f ? -88.0f : x, &n);
    return p * two_to(n);
}

static inline float log_(float x) {  // of 0 < x < infinity
    const int is_tiny = x < 1.17549435e-38f;
    const float y = is_tiny ? x * 8388608.0f : x;
    const int32_t e = (int32_t)(bits_of(y) - 0x3F3504F3u) >> 23;  // y = 2^e m, with m from sqrt(1/2) to sqrt(2)
    const float m = float_of(bits_of(y) - ((uint32_t)e << 23)), z = m - 1.0f, square = z * z;
    const float exponent = (float)(is_tiny ? e - 23 : e);
    float p = 7.0376836292e-2f;
    p = p * z - 1.1514610310e-1f;
    p = p * z + 1.1676998740e-1f;
    p = p * z - 1.2420140846e-1f;
    p = p * z + 1.4249322787e-1f;
    p = p * z - 1.6668057665e-1f;
    p = p * z + 2.0000714765e-1f;
    p = p * z - 2.4999993993e-1f;
    p = p * z + 3.3333331174e-1f;
    p = p * z * square - 2.12194440e-4f * exponent - 0.5f * square;
    return z + p + 0.693359375f * exponent;
}

// ---------------------------------------------------------------------------------------------- sums

// x[outer, length, inner], whose middle axis is cut into pieces of `chunk` elements.
typedef struct { int64_t outer, length, inner, pieces, chunk; } pieces_of_axis;

// What the kernel `sum` does; products use it, too, so that sums of rows have its bits.
void ag_add_up(float *out, const float *x, int type, pieces_of_axis p, float scale, int64_t part, int64_t parts);

// ---------------------------------------------------------------------------------------------- strided operands

// `count` elements of an operand, from element `first` of the result on; strides are 0 where the operand is repeated.
// Gives a pointer into the operand where they lie side by side in 32 bits, else copies them to `into`.
const float *ag_strided(const float *x, int type, const int64_t *stride, const int64_t *shape, int64_t ndim, int64_t first,
                        int64_t count, float *into);

#endif
