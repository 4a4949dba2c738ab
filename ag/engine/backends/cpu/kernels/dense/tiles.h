// Tiles of products in registers, memory for packed operands, and transposed blocks.
// A register has as many floats as the processor's vectors, and a tile is TALL rows of two registers.  An element of a
// product is one chain of fused products and sums over DEEP places of the inner axis, and these are added up in order:
// so it has the same bits wherever in a tile it lies, and however the result is cut for threads.
#ifndef TILES_H
#define TILES_H
#include "halves.h"

#if defined(__AVX512F__)
#define WIDTH 16
#define TALL 8
#elif defined(__AVX__)
#define WIDTH 8
#define TALL 6
#else
#define WIDTH 4
#define TALL 6
#endif
#define WIDE (2 * WIDTH)  // columns of a tile
#define DEEP 512

typedef float reg __attribute__((vector_size(4 * WIDTH)));
typedef int32_t mask __attribute__((vector_size(4 * WIDTH)));
typedef float loose_reg __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE reg get(const float *x) { return *(const loose_reg *)x; }
INLINE reg larger(reg a, reg b) {
    const mask of_a = a > b;
    return (reg)(((mask)a & of_a) | ((mask)b & ~of_a));
}
INLINE void put(float *x, reg v) { *(loose_reg *)x = v; }

// tile(rows, ...) for up to TALL rows, so that the compiler knows how many there are and keeps them in registers.
#if TALL > 6
#define TILE_OF_MORE(rows, ...) case 6: tile(6, __VA_ARGS__); break; case 7: tile(7, __VA_ARGS__); break;
#else
#define TILE_OF_MORE(rows, ...)
#endif
#define TILE_OF(rows, ...) \
    switch (rows) { \
        case 1: tile(1, __VA_ARGS__); break; \
        case 2: tile(2, __VA_ARGS__); break; \
        case 3: tile(3, __VA_ARGS__); break; \
        case 4: tile(4, __VA_ARGS__); break; \
        case 5: tile(5, __VA_ARGS__); break; \
        TILE_OF_MORE(rows, __VA_ARGS__) \
        default: tile(TALL, __VA_ARGS__); \
    }

static inline int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// c[rows, cols], its rows `step_c` apart, is A B, or A B is added to it; cols is WIDE at most.
// Element (i, k) of A is a[i / TALL * tile_a + i % TALL * row_a + k * step_a].  Rows of B are `step_b` apart; up to the
// next multiple of WIDTH, columns behind the last are read and may hold anything.
HIDDEN void ag_panel(float *c, int64_t step_c, int64_t rows, int64_t cols, const float *a, int64_t tile_a, int64_t row_a,
                     int64_t step_a, const float *b, int64_t step_b, int64_t inner, int add);

typedef struct {
    const void *at;        // numbers, or quants of blocks
    int64_t step;          // rows as they lie in memory are so many numbers apart
    int64_t turned;        // whether the product is of its transpose
    int64_t type;          // how numbers are stored: stored.h
    int64_t first;         // where there is a type: the number that the operand begins with
    const void *plane[3];  // of blocks: what belongs to their quants
} operand;

static inline operand numbers(const number *at, int64_t first, int type, int64_t step, int64_t turned) {
    return (operand){from_at(at, type, first), step, turned, type, 0, {0}};
}

static inline operand floats(const float *at, int64_t step, int64_t turned) { return numbers(at, 0, FLOATS, step, turned); }

// A matrix in words, of rows of `step` numbers; its planes begin at these words.
static inline operand packed(const uint32_t *words, int64_t step, int64_t turned, int64_t type, const int64_t *planes) {
    return (operand){words, step, turned, type, 0, {words + planes[0], words + planes[1], words + planes[2]}};
}

typedef struct {
    number *c;     // [rows, cols]
    operand a, b;  // b is not in blocks
    int64_t rows, cols, inner;
    int type;      // of c (halves.h)
} product;

// Part `part` of `parts` of a product (matmul.c); the calling thread's scratch is used.
HIDDEN void ag_multiply(const product *p, int64_t part, int64_t parts);

// to[j, i] = from[i, j] for `rows` rows and `cols` columns; rows of `to` and `from` are so many floats apart.
HIDDEN void ag_turn(float *to, int64_t step_to, const float *from, int64_t step_from, int64_t rows, int64_t cols);

// The same from numbers, of 16 columns at most, and to numbers, of 16 rows; element `first` is the first one's.
HIDDEN void ag_turn_from(float *to, int64_t step_to, const number *x, int type, int64_t first, int64_t step, int64_t rows,
                         int64_t cols);
HIDDEN void ag_turn_to(number *x, int type, int64_t first, int64_t step, const float *from, int64_t step_from, int64_t rows,
                       int64_t cols);

#if WIDTH == 16
#define LANES_OF(f, m) f(0, m), f(1, m), f(2, m), f(3, m), f(4, m), f(5, m), f(6, m), f(7, m), \
                       f(8, m), f(9, m), f(10, m), f(11, m), f(12, m), f(13, m), f(14, m), f(15, m)
#elif WIDTH == 8
#define LANES_OF(f, m) f(0, m), f(1, m), f(2, m), f(3, m), f(4, m), f(5, m), f(6, m), f(7, m)
#else
#define LANES_OF(f, m) f(0, m), f(1, m), f(2, m), f(3, m)
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(x, y, f, m) __builtin_shufflevector(x, y, LANES_OF(f, m))
#else
#define SHUFFLED(x, y, f, m) __builtin_shuffle(x, y, (mask){LANES_OF(f, m)})
#endif
#define FIRST_LANE(l, m) ((l) & (m) ? WIDTH + (l) - (m) : (l))
#define SECOND_LANE(l, m) ((l) & (m) ? WIDTH + (l) : (l) + (m))

// Of two rows of a square, blocks of m x m lanes: those on the diagonal and those off it change places.
#define EXCHANGED(x, y, m, first, second) \
    const reg first = SHUFFLED(x, y, FIRST_LANE, m), second = SHUFFLED(x, y, SECOND_LANE, m)

#endif
