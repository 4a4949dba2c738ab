// Panels of products, transposed blocks, and memory for packed operands; tiles.h says what they do.
// contract: a product and a sum may become one operation (ag.h)
#include <pthread.h>
#include <stdlib.h>
#include "tiles.h"

// ---------------------------------------------------------------------------------------------- memory

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_key;

typedef struct { int64_t count; float *floats; } block;

static void let_go(void *kept) {
    free(((block *)kept)->floats);
    free(kept);
}

static void make_key(void) { has_key = pthread_key_create(&key, let_go) == 0; }

float *ag_scratch(int64_t count) {
    pthread_once(&once, make_key);
    if (!has_key) return NULL;
    block *mine = pthread_getspecific(key);
    if (mine && mine->count >= count) return mine->floats;
    if (!mine) {
        mine = calloc(1, sizeof *mine);
        if (!mine || pthread_setspecific(key, mine)) {
            free(mine);
            return NULL;
        }
    }
    free(mine->floats);
    mine->count = up(count, 1024);
    mine->floats = aligned_alloc(64, (size_t)mine->count * sizeof *mine->floats);
    if (!mine->floats) mine->count = 0;
    return mine->floats;
}

// ---------------------------------------------------------------------------------------------- products

// A tile of `rows` rows and `regs` registers, stored in `cols` columns.
INLINE void tile(int rows, int regs, float *c, int64_t step_c, int64_t cols, const float *a, int64_t row_a,
                 int64_t step_a, const float *b, int64_t step_b, int64_t inner, int add) {
    reg sum[TALL][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < regs; j++) sum[i][j] = (reg){0};
    for (int64_t k = 0; k < inner; k++, a += step_a, b += step_b) {
        const reg x = get(b), y = regs > 1 ? get(b + WIDTH) : x;
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            sum[i][0] += a[i * row_a] * x;
            if (regs > 1) sum[i][1] += a[i * row_a] * y;
        }
    }
    if (cols == regs * WIDTH) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < regs; j++) {
                float *to = c + i * step_c + j * WIDTH;
                put(to, add ? get(to) + sum[i][j] : sum[i][j]);
            }
        return;
    }
    float row[WIDE] = {0.0f};
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < regs; j++) put(row + j * WIDTH, sum[i][j]);
        for (int64_t j = 0; j < cols; j++) c[i * step_c + j] = add ? c[i * step_c + j] + row[j] : row[j];
    }
}

#define ARGUMENTS float *c, int64_t step_c, int64_t cols, const float *a, int64_t row_a, int64_t step_a, const float *b, \
                  int64_t step_b, int64_t inner, int add
#define GIVEN c, step_c, cols, a, row_a, step_a, b, step_b, inner, add

INLINE void tile_of_rows(int64_t rows, int regs, ARGUMENTS) { TILE_OF(rows, regs, GIVEN); }

// Whole tiles whose A lies in rows or in columns, and all others.
static __attribute__((noinline)) void whole_of_rows(ARGUMENTS) {
    tile(TALL, 2, c, step_c, cols, a, row_a, 1, b, step_b, inner, add);
    (void)step_a;
}

static __attribute__((noinline)) void whole_of_cols(ARGUMENTS) {
    tile(TALL, 2, c, step_c, cols, a, 1, step_a, b, step_b, inner, add);
    (void)row_a;
}

static __attribute__((noinline)) void part_of_two(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 2, GIVEN); }
static __attribute__((noinline)) void part_of_one(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 1, GIVEN); }

void ag_panel(float *c, int64_t step_c, int64_t rows, int64_t cols, const float *a, int64_t tile_a, int64_t row_a,
              int64_t step_a, const float *b, int64_t step_b, int64_t inner, int add) {
    for (int64_t k = 0; k < inner || k == 0; k += DEEP) {
        const int64_t deep = least(DEEP, inner - k);
        const float *from = a + k * step_a, *under = b + k * step_b;
        for (int64_t i = 0; i < rows; i += TALL, from += tile_a) {
            const int64_t tall = least(TALL, rows - i);
            float *to = c + i * step_c;
            const int more = add || k;
            if (cols <= WIDTH) part_of_one(tall, to, step_c, cols, from, row_a, step_a, under, step_b, deep, more);
            else if (tall < TALL) part_of_two(tall, to, step_c, cols, from, row_a, step_a, under, step_b, deep, more);
            else if (step_a == 1) whole_of_rows(to, step_c, cols, from, row_a, step_a, under, step_b, deep, more);
            else if (row_a == 1) whole_of_cols(to, step_c, cols, from, row_a, step_a, under, step_b, deep, more);
            else part_of_two(tall, to, step_c, cols, from, row_a, step_a, under, step_b, deep, more);
        }
    }
}

// ---------------------------------------------------------------------------------------------- transposing

// Of a square of n x n blocks of lanes, or of WIDTH / n such squares side by side, rows become columns.
INLINE void exchange(int n, reg *x) {
#define STEP(m) \
    _Pragma("GCC unroll 16") for (int i = 0; m < n && i < n; i++) if (!(i & m)) { \
        EXCHANGED(x[i], x[i + m], m, first, second); \
        x[i] = first; \
        x[i + m] = second; \
    }
#if WIDTH > 8
    STEP(8)
#endif
#if WIDTH > 4
    STEP(4)
#endif
    STEP(2)
    STEP(1)
#undef STEP
}

// Four floats each of rows `step` apart.  Whole pairs are put into a register, as single floats would take longer.
INLINE reg fours(const float *x, int64_t step) {
    double __attribute__((vector_size(4 * WIDTH))) pairs = {0};
#pragma GCC unroll 4
    for (int i = 0; i < WIDTH / 4; i++) {
        double two[2];
        memcpy(two, x + i * step, sizeof two);
        pairs[2 * i] = two[0];
        pairs[2 * i + 1] = two[1];
    }
    return (reg)pairs;
}

// These are no part of the loops around them, which would keep too many addresses.
static __attribute__((noinline)) void turn_square(float *to, int64_t step_to, const float *from, int64_t step_from) {
    reg x[WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++, from += step_from) x[i] = get(from);
    exchange(WIDTH, x);
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++, to += step_to) put(to, x[i]);
}

// Four columns, and four rows.
static __attribute__((noinline)) void turn_columns(float *to, int64_t step_to, const float *from, int64_t step_from) {
    reg x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, from += step_from) x[i] = fours(from, 4 * step_from);
    exchange(4, x);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, to += step_to) put(to, x[i]);
}

static __attribute__((noinline)) void turn_rows(float *to, int64_t step_to, const float *from, int64_t step_from) {
    reg x[4];
    float turned[4][WIDTH];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, from += step_from) x[i] = get(from);
    exchange(4, x);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) put(turned[i], x[i]);
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; j++, to += step_to) memcpy(to, &turned[j % 4][j / 4 * 4], 4 * sizeof *to);
}

void ag_turn(float *to, int64_t step_to, const float *from, int64_t step_from, int64_t rows, int64_t cols) {
    for (int64_t i = 0, tall; i < rows; i += tall) {
        tall = rows - i >= WIDTH ? WIDTH : rows - i >= 4 ? 4 : 1;
        for (int64_t j = 0, wide; j < cols; j += wide) {
            const int64_t left = cols - j;
            const float *x = from + i * step_from + j;
            float *y = to + j * step_to + i;
            wide = left >= WIDTH ? WIDTH : tall == WIDTH ? least(4, left) : left;
            if (tall == WIDTH && wide == WIDTH) turn_square(y, step_to, x, step_from);
            else if (tall == WIDTH && wide == 4) turn_columns(y, step_to, x, step_from);
            else if (tall == 4 && wide == WIDTH) turn_rows(y, step_to, x, step_from);
            else
                for (int64_t c = 0; c < wide; c++)
                    for (int64_t r = 0; r < tall; r++) y[c * step_to + r] = x[r * step_from + c];
        }
    }
}

enum { SOME = 64 };  // rows whose 16-bit numbers are converted together

void ag_turn_from(float *to, int64_t step_to, const number *x, int type, int64_t first, int64_t step, int64_t rows,
                  int64_t cols) {
    float block[SOME * 16];
    if (!type) ag_turn(to, step_to, x + first, step, rows, cols);
    for (int64_t r = 0; type && r < rows; r += SOME) {
        const int64_t few = least(SOME, rows - r), at = first + r * step;
        if (cols == step) ag_to_floats(block, from_at(x, type, at), few * cols, type);
        else for (int64_t i = 0; i < few; i++) ag_to_floats(block + i * cols, from_at(x, type, at + i * step), cols, type);
        ag_turn(to + r, step_to, block, cols, few, cols);
    }
}

void ag_turn_to(number *x, int type, int64_t first, int64_t step, const float *from, int64_t step_from, int64_t rows,
                int64_t cols) {
    float block[SOME * 16];
    if (!type) ag_turn(x + first, step, from, step_from, rows, cols);
    for (int64_t c = 0; type && c < cols; c += SOME) {
        const int64_t few = least(SOME, cols - c), at = first + c * step;
        ag_turn(block, rows, from + c, step_from, rows, few);
        if (rows == step) ag_to_halves(to_at(x, type, at), block, few * rows, type);
        else for (int64_t i = 0; i < few; i++) ag_to_halves(to_at(x, type, at + i * step), block + i * rows, rows, type);
    }
}
