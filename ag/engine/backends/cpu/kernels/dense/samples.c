// Products of the matrices of samples, which are the last axis: a register has some samples, and nothing is permuted.
// contract: a product and a sum may become one operation (ag.h)
// The second factor of these samples is packed, as its rows lie far apart.
#include "tiles.h"

enum { SIDE = 3 };  // 3 x 3 elements are made at once, of a register's samples each

#define EACH_OF(i) _Pragma("GCC unroll 3") for (int i = 0; i < SIDE; i++)

INLINE reg some(const float *x, int64_t m) {
    if (m == WIDTH) return get(x);
    reg v = {0};
    memcpy(&v, x, (size_t)m * sizeof *x);
    return v;
}

// Three rows of a times packed columns, to elements `out_row` apart; rows and columns outside are not stored.
INLINE void square(float *out, int64_t out_row, int64_t samples, int64_t rows, int64_t cols, const float *const *a,
                   int64_t step_a, const float *b, int64_t inner, int64_t m) {
    const float *from[SIDE];
    reg sums[SIDE][SIDE];
    EACH_OF(i) from[i] = a[i];
    EACH_OF(i) EACH_OF(j) sums[i][j] = (reg){0};
    for (int64_t k = 0; k < inner; k++, b += SIDE * WIDTH) {
        EACH_OF(i) {
            const reg x = some(from[i], m);
            from[i] += step_a;
            EACH_OF(j) sums[i][j] += x * get(b + j * WIDTH);
        }
    }
    EACH_OF(i) EACH_OF(j) {
        if (i >= rows || j >= cols) continue;
        float *to = out + i * out_row + j * samples;
        if (m == WIDTH) put(to, sums[i][j]);
        else memcpy(to, &sums[i][j], (size_t)m * sizeof *to);
    }
}

typedef struct { int64_t outer, rows, cols, inner, samples, ta, tb; } sizes;

// Packs b as [columns / SIDE, inner, SIDE, WIDTH]; columns behind the last are the last once more.
static void pack(float *to, const float *b, const sizes *s, int64_t m) {
    const int64_t step_k = s->samples * (s->tb ? 1 : s->cols), step_c = s->samples * (s->tb ? s->inner : 1);
    for (int64_t c = 0; c < s->cols; c += SIDE)
        for (int64_t k = 0; k < s->inner; k++)
            for (int64_t j = 0; j < SIDE; j++, to += WIDTH)
                put(to, some(b + k * step_k + least(c + j, s->cols - 1) * step_c, m));
}

// Where memory for packing ends.
static void slowly(float *out, const float *a, const float *b, const sizes *s, int64_t m) {
    const int64_t row = s->samples * (s->ta ? 1 : s->inner), step_a = s->samples * (s->ta ? s->rows : 1);
    const int64_t col = s->samples * (s->tb ? s->inner : 1), step_b = s->samples * (s->tb ? 1 : s->cols);
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t c = 0; c < s->cols; c++)
            for (int64_t n = 0; n < m; n++) {
                float sum = 0;
                for (int64_t k = 0; k < s->inner; k++) sum += a[r * row + k * step_a + n] * b[c * col + k * step_b + n];
                out[(r * s->cols + c) * s->samples + n] = sum;
            }
}

// work: outer * rows * cols * inner * samples
KERNEL(sample_matmul, {
    float *out; const float *a; const float *b;
    int64_t outer; int64_t rows; int64_t cols; int64_t inner; int64_t samples; int64_t ta; int64_t tb;
}) {
    const sizes s = {a->outer, a->rows, a->cols, a->inner, a->samples, a->ta, a->tb};
    const int64_t groups = (s.samples + WIDTH - 1) / WIDTH, units = s.outer * groups;
    const int64_t cuts = units && units < parts ? (parts + units - 1) / units : 1, wide = up(s.cols, SIDE);
    const int64_t row = s.samples * (s.ta ? 1 : s.inner), step = s.samples * (s.ta ? s.rows : 1);
    const span mine = share(units * cuts, 1, part, parts);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t o = i / cuts / groups, n = i / cuts % groups * WIDTH, m = least(WIDTH, s.samples - n);
        const float *of_a = a->a + o * s.rows * s.inner * s.samples + n;
        float *packed = ag_scratch(wide * s.inner * WIDTH + 1), *out = a->out + o * s.rows * s.cols * s.samples + n;
        if (packed == NULL) {
            if (i % cuts == 0) slowly(out, of_a, a->b + o * s.inner * s.cols * s.samples + n, &s, m);
            continue;
        }
        pack(packed, a->b + o * s.inner * s.cols * s.samples + n, &s, m);
        const span some_rows = share(s.rows, SIDE, i % cuts, cuts);
        for (int64_t r = some_rows.begin; r < some_rows.end; r += SIDE) {
            const float *rows[SIDE];
            for (int64_t k = 0; k < SIDE; k++) rows[k] = of_a + least(r + k, s.rows - 1) * row;
            for (int64_t c = 0; c < s.cols; c += SIDE) {
                float *to = out + (r * s.cols + c) * s.samples;
                const float *b = packed + c * s.inner * WIDTH;
                const int64_t line = s.cols * s.samples, down = s.rows - r, across = s.cols - c;
                if (m == WIDTH) square(to, line, s.samples, down, across, rows, step, b, s.inner, WIDTH);
                else square(to, line, s.samples, down, across, rows, step, b, s.inner, m);
            }
        }
    }
}
