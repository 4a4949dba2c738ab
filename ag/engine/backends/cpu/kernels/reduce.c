// Reductions along one axis, cut into pieces of `chunk` elements; broadcasting and equality.
#include "rows.h"

// ---------------------------------------------------------------------------------------------- sums

static void sum_columns(float *out, const float *x, int64_t rows, int64_t step, int64_t width, float scale) {
    float part[COLUMNS];
    double total[COLUMNS] = {0};
    DOWN(0, rows, width, part, total, { EACH(c, width) part[c] += x[k * step + c]; })
    EACH(c, width) out[c] = (float)total[c] * scale;
}

// A few columns: as many rows as make a tile are one long row, so that vectors are full.
static void sum_few_columns(float *out, const float *x, int64_t rows, int64_t width, float scale) {
    const int64_t folded = COLUMNS / width, wide = folded * width, whole = rows / folded;
    float part[COLUMNS];
    double total[COLUMNS] = {0};
    DOWN(0, whole, wide, part, total, { EACH(c, wide) part[c] += x[k * wide + c]; })
    for (int64_t c = 0; c < rows * width - whole * wide; c++) total[c] += x[whole * wide + c];
    for (int64_t c = 0; c < width; c++) {
        for (int64_t k = 1; k < folded; k++) total[c] += total[k * width + c];
        out[c] = (float)total[c] * scale;
    }
}

void ag_add_up(float *out, const float *x, pieces_of_axis p, float scale, int64_t part, int64_t parts) {
    const span s = share(tiles_of(p.outer * p.pieces, p.inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, 1, p.inner);
        const int64_t first = t.outer % p.pieces * p.chunk, rows = least(p.chunk, p.length - first);
        const float *from = x + (t.outer / p.pieces * p.length + first) * p.inner + t.column;
        if (p.inner == 1) out[t.begin] = (float)row_sum(from, rows) * scale;
        else if (4 * p.inner <= COLUMNS) sum_few_columns(out + t.begin, from, rows, p.inner, scale);
        else sum_columns(out + t.begin, from, rows, p.inner, t.width, scale);
    }
}

KERNEL(sum, {
    float *out; const float *x; int64_t outer; int64_t length; int64_t inner; int64_t pieces; int64_t chunk; double scale;
}) {
    const pieces_of_axis p = {a->outer, a->length, a->inner, a->pieces, a->chunk};
    ag_add_up(a->out, a->x, p, (float)a->scale, part, parts);
}

// ---------------------------------------------------------------------------------------------- maxima

static void max_few_columns(float *out, const float *x, int64_t rows, int64_t width) {
    const int64_t folded = COLUMNS / width, wide = folded * width, whole = rows / folded;
    float top[COLUMNS];
    column_max(top, x, whole, wide, wide);
    for (int64_t c = 0; c < rows * width - whole * wide; c++) top[c] = larger(top[c], x[whole * wide + c]);
    for (int64_t c = 0; c < width; c++) {
        out[c] = top[c];
        for (int64_t k = 1; k < folded; k++) out[c] = larger(out[c], top[k * width + c]);
    }
}

KERNEL(max, {
    float *out; const float *x; int64_t outer; int64_t length; int64_t inner; int64_t pieces; int64_t chunk;
}) {
    const span s = share(tiles_of(a->outer * a->pieces, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, 1, a->inner);
        const int64_t first = t.outer % a->pieces * a->chunk, rows = least(a->chunk, a->length - first);
        const float *x = a->x + (t.outer / a->pieces * a->length + first) * a->inner + t.column;
        if (a->inner == 1) a->out[t.begin] = row_max(x, rows);
        else if (4 * a->inner <= COLUMNS) max_few_columns(a->out + t.begin, x, rows, a->inner);
        else column_max(a->out + t.begin, x, rows, a->inner, t.width);
    }
}

// The first place of the largest, or of a NaN.
KERNEL(argmax, { int32_t *out; const float *x; int64_t outer; int64_t length; int64_t inner; }) {
    const span s = share(tiles_of(a->outer, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, 1, a->inner);
        const float *x = a->x + t.outer * a->length * a->inner + t.column;
        float top[COLUMNS];
        int32_t *at = a->out + t.begin;
        EACH(c, t.width) { top[c] = x[c]; at[c] = 0; }
        for (int32_t k = 1; k < a->length; k++) {
            x += a->inner;
            EACH(c, t.width) {
                const int above = (x[c] > top[c]) | ((x[c] != x[c]) & (top[c] == top[c]));
                top[c] = above ? x[c] : top[c];
                at[c] = above ? k : at[c];
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------- broadcasting

KERNEL(expand, {
    float *out; const float *x; int64_t n; int64_t ndim; int64_t shape[8]; int64_t x_stride[8]; double factor;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    const float factor = (float)a->factor;
    float block[BLOCK];
    for (int64_t b = s.begin; b < s.end; b += BLOCK) {
        const int64_t m = least(BLOCK, s.end - b);
        const float *x = ag_strided(a->x, a->x_stride, a->shape, a->ndim, b, m, block);
        EACH(i, m) a->out[b + i] = x[i] * factor;
    }
}

KERNEL(equal, {
    float *out; const float *a; const float *b; int64_t n; int64_t ndim; int64_t shape[8]; int64_t a_stride[8];
    int64_t b_stride[8];
}) {
    const span s = share(a->n, BLOCK, part, parts);
    float first[BLOCK], second[BLOCK];
    for (int64_t b = s.begin; b < s.end; b += BLOCK) {
        const int64_t m = least(BLOCK, s.end - b);
        const float *x = ag_strided(a->a, a->a_stride, a->shape, a->ndim, b, m, first);
        const float *y = ag_strided(a->b, a->b_stride, a->shape, a->ndim, b, m, second);
        EACH(i, m) a->out[b + i] = x[i] == y[i] ? 1.0f : 0.0f;
    }
}
