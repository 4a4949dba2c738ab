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

INLINE void turn_square(float *to, int64_t step_to, const float *from, int64_t step_from) {
    reg x[WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) x[i] = get(from + i * step_from);
#define STEP(m) \
    _Pragma("GCC unroll 16") for (int i = 0; i < WIDTH; i++) if (!(i & m)) { \
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
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) put(to + i * step_to, x[i]);
}

// Fewer than WIDTH floats; a call of memcpy would take longer.
INLINE void copy_few(float *to, const float *from, int64_t count) {
#if WIDTH > 8
    if (count & 8) {
        memcpy(to, from, 8 * sizeof *to);
        to += 8;
        from += 8;
    }
#endif
#if WIDTH > 4
    if (count & 4) {
        memcpy(to, from, 4 * sizeof *to);
        to += 4;
        from += 4;
    }
#endif
    for (count &= 3; count; count--) *to++ = *from++;
}

void ag_turn(float *to, int64_t step_to, const float *from, int64_t step_from, int64_t rows, int64_t cols) {
    float square[WIDTH * WIDTH], turned[WIDTH * WIDTH];
    for (int64_t i = 0; i < rows; i += WIDTH) {
        const int64_t tall = least(WIDTH, rows - i);
        for (int64_t j = 0; j < cols; j += WIDTH) {
            const int64_t wide = least(WIDTH, cols - j);
            const float *x = from + i * step_from + j;
            float *y = to + j * step_to + i;
            if (tall == WIDTH && wide == WIDTH) {
                turn_square(y, step_to, x, step_from);
                continue;
            }
            memset(square, 0, sizeof square);
            for (int64_t r = 0; r < tall; r++) {
                if (wide == WIDTH) put(square + r * WIDTH, get(x + r * step_from));
                else copy_few(square + r * WIDTH, x + r * step_from, wide);
            }
            turn_square(turned, WIDTH, square, WIDTH);
            for (int64_t r = 0; r < wide; r++) {
                if (tall == WIDTH) put(y + r * step_to, get(turned + r * WIDTH));
                else copy_few(y + r * step_to, turned + r * WIDTH, tall);
            }
        }
    }
}
