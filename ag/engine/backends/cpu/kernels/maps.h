// How a function of functions.glsl is mapped over arrays.
#ifndef MAPS_H
#define MAPS_H
#include "ag.h"

#define BLOCK 512

typedef void (*map)(float *out, const float *x, const float *y, float value, int64_t n);

static inline void map_all(map f, float *out, const float *x, const float *y, float value, int64_t n) {
    for (int64_t i = 0; i < n; i += SOON) {
        const int64_t m = least(SOON, n - i);
        expect(x + i, m);
        if (x != y) expect(y + i, m);
        f(out + i, x + i, y + i, value, m);
    }
}

typedef struct { int64_t n, ndim; const int64_t *shape, *a_stride, *b_stride; } walk;

static inline void map_broadcast(map f, float *out, const float *a, const float *b, walk w, int64_t part, int64_t parts) {
    float x[BLOCK], y[BLOCK];
    const span s = share(w.n, BLOCK, part, parts);
    for (int64_t i = s.begin; i < s.end; i += BLOCK) {
        const int64_t m = least(BLOCK, s.end - i);
        f(out + i, ag_strided(a, w.a_stride, w.shape, w.ndim, i, m, x),
          ag_strided(b, w.b_stride, w.shape, w.ndim, i, m, y), 0.0f, m);
    }
}
#endif
