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

// Where element i lies.
static inline const float *from_at(const float *x, int type, int64_t i) {
    return type ? (const float *)((const half_word *)x + i) : x + i;
}
static inline float *to_at(float *x, int type, int64_t i) { return type ? (float *)((half_word *)x + i) : x + i; }

// n numbers to float32, and to 16 bits, rounded to the nearest, ties to even.
HIDDEN void ag_to_floats(float *to, const void *from, int64_t n, int type);
HIDDEN void ag_to_halves(void *to, const float *from, int64_t n, int type);

// Where one of n numbers `x` from element `first` on is not what the master rounds to, somebody changed it: that is the
// master from now on.
HIDDEN void ag_follow(float *master, const float *x, int type, int64_t first, int64_t n);

// n numbers from element `first` on, where they lie or converted to `into`.
static inline const float *wide(const float *x, int type, int64_t first, int64_t n, float *into) {
    if (!type) return x + first;
    ag_to_floats(into, from_at(x, type, first), n, type);
    return into;
}

static inline float number_at(const float *x, int type, int64_t i) {
    float found;
    return *wide(x, type, i, 1, &found);
}

static inline void put_at(float *out, int type, int64_t i, float x) {
    if (type) ag_to_halves(to_at(out, type, i), &x, 1, type);
    else out[i] = x;
}

// Where to make n results, and `kept` brings them where they belong.
static inline float *room(float *out, int type, int64_t first, float *into) { return type ? into : out + first; }
static inline void kept(float *out, int type, int64_t first, int64_t n, const float *made) {
    if (type) ag_to_halves(to_at(out, type, first), made, n, type);
}
#endif
