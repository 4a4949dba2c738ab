// Reductions along one axis, cut into pieces of `chunk` elements; broadcasting and equality.
#include "rows.h"

#define FOLDED 128  // numbers of the row that some rows of a few columns make

// ---------------------------------------------------------------------------------------------- sums

static void sum_columns(float *out, const float *x, int type, int64_t rows, int64_t step, int64_t width, float scale) {
    ALIGNED float part[COLUMNS], block[COLUMNS];
    ALIGNED double total[COLUMNS] = {0};
    DOWN(0, rows, width, part, total, {
        const float *row = wide(x, type, k * step, width, block);
        EACH(c, width) part[c] += row[c];
    })
    EACH(c, width) out[c] = (float)total[c] * scale;
}

// A few columns: some rows are one long row, so that vectors are full.
static void sum_few_columns(float *out, const float *x, int type, int64_t rows, int64_t width, float scale) {
    const int64_t folded = FOLDED / width, line = folded * width, whole = rows / folded, rest = rows * width - whole * line;
    ALIGNED float part[FOLDED], block[FOLDED];
    ALIGNED double total[FOLDED] = {0};
    DOWN(0, whole, line, part, total, {
        const float *row = wide(x, type, k * line, line, block);
        EACH(c, line) part[c] += row[c];
    })
    const float *last = wide(x, type, whole * line, rest, block);
    for (int64_t c = 0; c < rest; c++) total[c] += last[c];
    for (int64_t c = 0; c < width; c++) {
        for (int64_t k = 1; k < folded; k++) total[c] += total[k * width + c];
        out[c] = (float)total[c] * scale;
    }
}

void ag_add_up(float *out, const float *x, int type, pieces_of_axis p, float scale, int64_t part, int64_t parts) {
    const span s = share(tiles_of(p.outer * p.pieces, 1, p.inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, 1, p.inner);
        const int64_t first = t.outer % p.pieces * p.chunk, rows = least(p.chunk, p.length - first);
        const float *from = from_at(x, type, (t.outer / p.pieces * p.length + first) * p.inner + t.column);
        if (p.inner == 1) out[t.begin] = (float)row_sum(from, type, rows) * scale;
        else if (4 * p.inner <= FOLDED) sum_few_columns(out + t.begin, from, type, rows, p.inner, scale);
        else sum_columns(out + t.begin, from, type, rows, p.inner, t.width, scale);
    }
}

KERNEL(sum, {
    float *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t pieces; int64_t chunk; double scale;
    int64_t types;
}) {
    const pieces_of_axis p = {a->outer, a->length, a->inner, a->pieces, a->chunk};
    ag_add_up(a->out, a->x, type_of(a->types, 1), p, (float)a->scale, part, parts);
}

// ---------------------------------------------------------------------------------------------- maxima, minima, products

static inline float smaller(float a, float b) { return b < a || b != b ? b : a; }

static inline float multiplied(float a, float b) { return a * b; }

// A reduction that combines two numbers: of tiles of columns, or of a few, where some rows are one.
#define FOLD(name, neutral, combine) \
static void name##_columns(float *out, const float *x, int type, int64_t rows, int64_t step, int64_t width) { \
    ALIGNED float block[COLUMNS]; \
    EACH(c, width) out[c] = neutral; \
    for (int64_t k = 0; k < rows; k++) { \
        const float *row = wide(x, type, k * step, width, block); \
        EACH(c, width) out[c] = combine(out[c], row[c]); \
    } \
} \
static void name##_few_columns(float *out, const float *x, int type, int64_t rows, int64_t width) { \
    const int64_t folded = FOLDED / width, line = folded * width, whole = rows / folded, rest = rows * width - whole * line; \
    ALIGNED float part[FOLDED], block[FOLDED]; \
    name##_columns(part, x, type, whole, line, line); \
    const float *last = wide(x, type, whole * line, rest, block); \
    for (int64_t c = 0; c < rest; c++) part[c] = combine(part[c], last[c]); \
    for (int64_t c = 0; c < width; c++) { \
        out[c] = part[c]; \
        for (int64_t k = 1; k < folded; k++) out[c] = combine(out[c], part[k * width + c]); \
    } \
} \
static void name##_fold(float *out, const float *from, int type, pieces_of_axis p, int64_t part, int64_t parts) { \
    const span s = share(tiles_of(p.outer * p.pieces, 1, p.inner), 1, part, parts); \
    for (int64_t i = s.begin; i < s.end; i++) { \
        const tile t = tile_at(i, 1, p.inner); \
        const int64_t first = t.outer % p.pieces * p.chunk, rows = least(p.chunk, p.length - first); \
        const float *x = from_at(from, type, (t.outer / p.pieces * p.length + first) * p.inner + t.column); \
        if (4 * p.inner <= FOLDED && rows * p.inner >= FOLDED) name##_few_columns(out + t.begin, x, type, rows, p.inner); \
        else if (p.inner > 1) name##_columns(out + t.begin, x, type, rows, p.inner, t.width); \
        else { \
            float whole = neutral; \
            for (int64_t k = 0; k < rows; k++) whole = combine(whole, number_at(x, type, k)); \
            out[t.begin] = whole; \
        } \
    } \
}

FOLD(max, -INFINITY_, larger)
FOLD(min, INFINITY_, smaller)
FOLD(prod, 1.0f, multiplied)

#define PIECES (pieces_of_axis){a->outer, a->length, a->inner, a->pieces, a->chunk}, part, parts

KERNEL(max, {
    float *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t pieces; int64_t chunk; int64_t types;
}) { max_fold(a->out, a->x, type_of(a->types, 1), PIECES); }

KERNEL(min, {
    float *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t pieces; int64_t chunk; int64_t types;
}) { min_fold(a->out, a->x, type_of(a->types, 1), PIECES); }

KERNEL(prod, {
    float *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t pieces; int64_t chunk; int64_t types;
}) { prod_fold(a->out, a->x, type_of(a->types, 1), PIECES); }

// The first place of the largest, or of a NaN.
KERNEL(argmax, { int32_t *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t types; }) {
    const int type = type_of(a->types, 1);
    const span s = share(tiles_of(a->outer, 1, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, 1, a->inner);
        const int64_t first = t.outer * a->length * a->inner + t.column;
        ALIGNED float top[COLUMNS], block[COLUMNS];
        take_floats(top, a->x, type, first, t.width);
        int32_t *at = a->out + t.begin;
        EACH(c, t.width) at[c] = 0;
        for (int32_t k = 1; k < a->length; k++) {
            const float *x = wide(a->x, type, first + k * a->inner, t.width, block);
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
    float *out; const number *x; int64_t n; int64_t ndim; int64_t shape[8]; int64_t x_stride[8]; double factor; int64_t types;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    const float factor = (float)a->factor;
    ALIGNED float block[BLOCK];
    for (int64_t b = s.begin; b < s.end; b += BLOCK) {
        const int64_t m = least(BLOCK, s.end - b);
        const float *x = ag_strided(a->x, type_of(a->types, 1), a->x_stride, a->shape, a->ndim, b, m, block);
        if (factor == 1.0f) EACH(i, m) a->out[b + i] = x[i];  // any bits
        else EACH(i, m) a->out[b + i] = x[i] * factor;
    }
}

KERNEL(equal, {
    float *out; const number *a; const number *b; int64_t n; int64_t ndim; int64_t shape[8]; int64_t a_stride[8];
    int64_t b_stride[8]; int64_t types;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    ALIGNED float first[BLOCK], second[BLOCK];
    for (int64_t b = s.begin; b < s.end; b += BLOCK) {
        const int64_t m = least(BLOCK, s.end - b);
        const float *x = ag_strided(a->a, type_of(a->types, 1), a->a_stride, a->shape, a->ndim, b, m, first);
        const float *y = ag_strided(a->b, type_of(a->types, 2), a->b_stride, a->shape, a->ndim, b, m, second);
        EACH(i, m) a->out[b + i] = x[i] == y[i] ? 1.0f : 0.0f;
    }
}
