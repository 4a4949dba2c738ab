// How a function of functions.glsl is mapped over arrays.
#ifndef MAPS_H
#define MAPS_H
#include "halves.h"

#define BLOCK 512

typedef void (*map)(float *out, const float *x, const float *y, float value, int64_t n);

// Elements of the share `s` of a function's result; `types` are those of the result and of x and y.
static inline void map_all(map f, int64_t types, float *out, const float *x, const float *y, float value, span s) {
    ALIGNED float memory[3][SOON];
    const int type = type_of(types, 0), of_x = type_of(types, 1), of_y = x == y ? of_x : type_of(types, 2);
    for (int64_t i = s.begin; i < s.end; i += SOON) {
        const int64_t m = least(SOON, s.end - i);
        const float *first = next_wide(x, of_x, i, m, memory[1]);
        const float *second = x == y ? first : next_wide(y, of_y, i, m, memory[2]);
        f(room(out, type, i, memory[0]), first, second, value, m);
        kept(out, type, i, m, memory[0]);
    }
}

typedef struct { int64_t n, ndim; const int64_t *shape, *a_stride, *b_stride; } walk;

static inline void map_broadcast(map f, int64_t types, float *out, const float *a, const float *b, walk w, int64_t part,
                                 int64_t parts) {
    ALIGNED float x[BLOCK], y[BLOCK], z[BLOCK];
    const int type = type_of(types, 0);
    const span s = share(w.n, BLOCK, part, parts);
    for (int64_t i = s.begin; i < s.end; i += BLOCK) {
        const int64_t m = least(BLOCK, s.end - i);
        f(room(out, type, i, z), ag_strided(a, type_of(types, 1), w.a_stride, w.shape, w.ndim, i, m, x),
          ag_strided(b, type_of(types, 2), w.b_stride, w.shape, w.ndim, i, m, y), 0.0f, m);
        kept(out, type, i, m, z);
    }
}
#endif
