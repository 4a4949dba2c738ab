// Sums and maxima along one axis of x[outer, length, inner], by rows or by columns.
// Where inner is 1, a row lies in one piece: a kernel takes blocks of it, adds each up in lanes, and these sums as doubles.
// Else it takes a tile of neighbouring columns and goes down the axis: its vectors are columns, and after every STRIDE
// rows their sums go into doubles.  So long sums keep their digits, are cut at fixed places, and no loop waits for the
// sum before.
#ifndef ROWS_H
#define ROWS_H
#include "halves.h"

#define BLOCK 512  // elements of a row that are added up in float
#define STRIDE 64  // rows that are
#define COLUMNS 512  // of a tile at most: its sums stay in the first-level cache
#define PAGE 1024  // floats
#define FEW 256  // rows that a cache may have no places for

#define INFINITY_ __builtin_inff()
#define IVDEP _Pragma("GCC ivdep")
#define EACH(i, n) IVDEP for (int64_t i = 0; i < (n); i++)

// ln(x), whatever x is.
static inline float ln(float x) {
    if (x > 0.0f && x < INFINITY_) return log_(x);
    return x == 0.0f ? -INFINITY_ : x < 0.0f ? __builtin_nanf("") : x;
}

static inline float larger(float a, float b) { return b > a || b != b ? b : a; }

typedef int32_t mask __attribute__((vector_size(64)));

static inline vec larger_lanes(vec a, vec b) {
    const mask second = (b > a) | (b != b);
    return (vec)(((mask)b & second) | ((mask)a & ~second));
}

// ---------------------------------------------------------------------------------------------- rows

// The sum of n <= BLOCK elements.
static inline float block_sum(const float *x, int64_t n) {
    if (n < LANES) {
        float total = 0.0f;
        for (int64_t i = 0; i < n; i++) total += x[i];
        return total;
    }
    vec sums[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++) sums[k] += load(x + i + k * LANES);
    for (; i + LANES <= n; i += LANES) sums[0] += load(x + i);
    float rest[LANES] = {0};
    for (int k = 0; i + k < n; k++) rest[k] = x[i + k];
    return added((sums[0] + sums[1]) + (sums[2] + sums[3]) + load(rest));
}

static inline double row_sum(const float *x, int type, int64_t n) {
    ALIGNED float block[BLOCK];
    double total = 0.0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t m = least(BLOCK, n - i);
        total += block_sum(wide(x, type, i, m, block), m);
    }
    return total;
}

// The largest, NaN if one of them is.
static inline float row_max(const float *x, int64_t n) {
    float top = -INFINITY_;
    int64_t i = 0;
    if (n >= LANES) {
        float lanes[LANES];
        vec tops = load(x);
        for (i = LANES; i + LANES <= n; i += LANES) tops = larger_lanes(tops, load(x + i));
        store(lanes, tops);
        for (int k = 0; k < LANES; k++) top = larger(top, lanes[k]);
    }
    for (; i < n; i++) top = larger(top, x[i]);
    return top;
}

// ---------------------------------------------------------------------------------------------- columns

// A row of x, or a tile of columns of one matrix: where it begins, and how many columns it has.
typedef struct { int64_t begin, outer, column, width; } tile;

// As many columns as memory gives in one go, but enough tiles for all threads.
static inline int64_t columns_of(int64_t length, int64_t inner) {
    int64_t columns = COLUMNS;
    while (columns > 128 && (inner < 16 * columns || length * columns > MANY)) columns /= 2;
    return columns;
}

static inline int64_t tiles_of(int64_t outer, int64_t length, int64_t inner) {
    const int64_t columns = columns_of(length, inner);
    return outer * ((inner + columns - 1) / columns);
}

static inline tile tile_at(int64_t number, int64_t length, int64_t inner) {
    const int64_t columns = columns_of(length, inner), each = (inner + columns - 1) / columns;
    const int64_t outer = number / each, column = number % each * columns;
    return (tile){outer * length * inner + column, outer, column, least(columns, inner - column)};
}

// Goes down `rows` rows from `first` on, with `body` for each, and adds what it has put into `part` to `total`.
#define DOWN(first, rows, width, part, total, body) \
    for (int64_t begin_ = 0; begin_ < (rows); begin_ += STRIDE) { \
        EACH(c, width) part[c] = 0.0f; \
        for (int64_t k = (first) + begin_; k < (first) + least(begin_ + STRIDE, rows); k++) body \
        EACH(c, width) total[c] += part[c]; \
    }

// A tile that is gone over several times.  Rows that are whole pages apart have the same few places of a cache, so that
// they would push each other out; those lie in one piece meanwhile, and 16-bit ones in float32, if there is memory.
typedef struct { float *x; int64_t step; int type; } piece;

static inline piece in_one_piece(const float *x, int type, int64_t first, int64_t rows, int64_t step, int64_t width) {
    const int pays = type || (step % PAGE == 0 && rows >= FEW);
    float *own = pays && rows * width <= MANY ? ag_scratch(rows * width) : NULL;
    if (own == NULL) return (piece){(float *)from_at(x, type, first), step, type};
    for (int64_t k = 0; k < rows; k++) {
        if (type) ag_to_floats(own + k * width, from_at(x, type, first + k * step), width, type);
        else memcpy(own + k * width, x + first + k * step, (size_t)width * sizeof *x);
    }
    return (piece){own, width, FLOATS};
}

// The largest of each column.
static inline void column_max(float *top, const float *x, int type, int64_t rows, int64_t step, int64_t width) {
    ALIGNED float block[COLUMNS];
    EACH(c, width) top[c] = -INFINITY_;
    for (int64_t k = 0; k < rows; k++) {
        const float *row = wide(x, type, k * step, width, block);
        EACH(c, width) top[c] = larger(top[c], row[c]);
    }
}

#endif
