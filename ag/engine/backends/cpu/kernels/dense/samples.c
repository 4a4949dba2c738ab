// Products of the matrices of samples, which are the last axis: a register has some samples, and nothing is permuted.
// contract: a product and a sum may become one operation (ag.h)
// The factors of these samples are packed, as their rows lie far apart, often in one place of the cache.
#include "stored.h"

// Elements that are made at once, of a register's samples each: as many as there are registers for.
#if WIDTH == 16
enum { HIGH = 4, BROAD = 6 };
#else
enum { HIGH = 3, BROAD = 4 };
#endif

#define EACH_OF(i, count) _Pragma("GCC unroll 6") for (int i = 0; i < count; i++)

INLINE reg some(const number *x, int type, int64_t first, int64_t m) {
    const void *at = from_at(x, type, first);
    if (m == WIDTH) return type == BFLOATS ? of_uppers(at) : type ? of_halves(at) : get(at);
    ALIGNED float v[WIDTH] = {0};
    take_floats(v, x, type, first, m);
    return get(v);
}

// Packed rows times packed columns, to elements `line` apart; rows and columns outside are not stored.
INLINE void square(float *out, int64_t line, int64_t samples, int64_t rows, int64_t cols, const float *a, const float *b,
                   int64_t inner, int64_t m) {
    reg sums[HIGH][BROAD];
    EACH_OF(i, HIGH) EACH_OF(j, BROAD) sums[i][j] = (reg){0};
    for (int64_t k = 0; k < inner; k++, a += HIGH * WIDTH, b += BROAD * WIDTH)
        EACH_OF(i, HIGH) EACH_OF(j, BROAD) sums[i][j] += get(a + i * WIDTH) * get(b + j * WIDTH);
    EACH_OF(i, HIGH) EACH_OF(j, BROAD) {
        if (i >= rows || j >= cols) continue;
        float *to = out + i * line + j * samples;
        if (m == WIDTH) put(to, sums[i][j]);
        else memcpy(to, &sums[i][j], (size_t)m * sizeof *to);
    }
}

typedef struct { int64_t outer, rows, cols, inner, samples, ta, tb; int of_out, of_a, of_b; } sizes;

// Packs lines, `step` apart, as [lines / few, inner, few, WIDTH]; lines behind the last are the last once more.
INLINE void pack(float *to, int64_t few, const number *x, int type, int64_t first, int64_t lines, int64_t step, int64_t inner,
                 int64_t step_k, int64_t m) {
    for (int64_t c = 0; c < lines; c += few)
        for (int64_t k = 0; k < inner; k++)
            for (int64_t j = 0; j < few; j++, to += WIDTH)
                put(to, some(x, type, first + k * step_k + least(c + j, lines - 1) * step, m));
}

// Some rows, where memory for packing ends.
static void slowly(number *out, const number *a, const number *b, const sizes *s, span rows, int64_t m) {
    const int64_t row = s->samples * (s->ta ? 1 : s->inner), step_a = s->samples * (s->ta ? s->rows : 1);
    const int64_t col = s->samples * (s->tb ? s->inner : 1), step_b = s->samples * (s->tb ? 1 : s->cols);
    for (int64_t r = rows.begin; r < rows.end; r++)
        for (int64_t c = 0; c < s->cols; c++)
            for (int64_t n = 0; n < m; n++) {
                float sum = 0;
                for (int64_t k = 0; k < s->inner; k++)
                    sum += number_at(a, s->of_a, r * row + k * step_a + n) * number_at(b, s->of_b, c * col + k * step_b + n);
                put_at(out, s->of_out, (r * s->cols + c) * s->samples + n, sum);
            }
}

// Some rows of the products of m samples, a register's at most; 0 where memory ends.  Rows of a are packed as many as the
// second-level cache holds, and columns of b a few at a time, which stay in the first.
static int of_small(number *out, const number *a, const number *b, const sizes *s, span rows, int64_t m) {
    const int64_t row = s->samples * (s->ta ? 1 : s->inner), step_a = s->samples * (s->ta ? s->rows : 1);
    const int64_t col = s->samples * (s->tb ? s->inner : 1), step_b = s->samples * (s->tb ? 1 : s->cols);
    const int64_t line = s->cols * s->samples, one = s->inner * WIDTH;
    const int64_t held = up(least(rows.end - rows.begin, 1 + MANY / (one + 1)), HIGH);
    float *packed = ag_scratch((held + BROAD) * one + 1);
    if (!packed) return 0;
    float *few = packed + held * one, made[HIGH * BROAD * WIDTH];
    for (int64_t first = rows.begin; first < rows.end; first += held) {
        const int64_t count = least(held, rows.end - first);
        pack(packed, HIGH, a, s->of_a, first * row, count, row, s->inner, step_a, m);
        for (int64_t c = 0; c < s->cols; c += BROAD) {
            const int64_t across = s->cols - c;
            pack(few, BROAD, b, s->of_b, c * col, least(BROAD, across), col, s->inner, step_b, m);
            for (int64_t r = 0; r < count; r += HIGH) {
                const int64_t at = ((first + r) * s->cols + c) * s->samples;
                float *to = out + at;
                if (s->of_out) square(made, BROAD * WIDTH, WIDTH, HIGH, BROAD, packed + r * one, few, s->inner, WIDTH);
                else if (m == WIDTH) square(to, line, s->samples, count - r, across, packed + r * one, few, s->inner, WIDTH);
                else square(to, line, s->samples, count - r, across, packed + r * one, few, s->inner, m);
                for (int64_t i = 0; s->of_out && i < least(HIGH, count - r); i++)
                    for (int64_t j = 0; j < least(BROAD, across); j++)
                        kept(out, s->of_out, at + i * line + j * s->samples, m, made + (i * BROAD + j) * WIDTH);
            }
        }
    }
    return 1;
}

// ---------------------------------------------------------------------------------------------- large matrices

// Of a block; samples that are moved to the front together; numbers of a large b.
enum { ROWS = 48, COLS = WIDTH == 16 ? 64 : 32, GROUP = 16, LARGE = 1 << 13 };

// Floats from a sample's block to the next one's: an odd number of cache lines, so that they do not share their places.
static int64_t apart(int64_t floats) { return up(floats, 16) | 16; }

// Packs b as [m, columns / WIDE, inner, WIDE]; what lies behind the last column is any number.
static void pack_panels(float *to, const number *b, const sizes *s, int64_t m) {
    const int64_t step_k = s->samples * (s->tb ? 1 : s->cols), step_c = s->samples * (s->tb ? s->inner : 1);
    const int64_t one = apart(up(s->cols, WIDE) * s->inner);
    for (int64_t c = 0; c < s->cols; c += WIDE)
        for (int64_t k = 0; k < s->inner; k++, to += WIDE)
            ag_turn_from(to, one, b, s->of_b, c * step_c + k * step_k, step_c, least(WIDE, s->cols - c), m);
}

// Some rows of a as [m, rows, inner], or as [m, inner, ROWS] where it is transposed.
static void pack_rows(float *to, const number *a, int64_t first, const sizes *s, int64_t rows, int64_t m) {
    const int64_t one = apart(ROWS * s->inner);
    if (!s->ta) ag_turn_from(to, one, a, s->of_a, first, s->samples, rows * s->inner, m);
    for (int64_t k = 0; s->ta && k < s->inner; k++)
        ag_turn_from(to + k * ROWS, one, a, s->of_a, first + k * s->rows * s->samples, s->samples, rows, m);
}

// Some rows of the products of m samples: blocks of the factors are moved to the front, and those of the result back.
static int of_large(number *out, const number *a, const number *b, const sizes *s, span rows, int64_t m) {
    const int64_t inner = s->inner, line = s->samples * (s->ta ? 1 : inner), of_a = apart(ROWS * inner);
    const int64_t of_b = apart(up(s->cols, WIDE) * inner), of_c = apart(ROWS * COLS);
    float *panels = ag_scratch(m * (of_a + of_b + of_c));
    if (!panels) return 0;
    float *block = panels + m * of_b, *made = block + m * of_a;
    pack_panels(panels, b, s, m);
    for (int64_t r = rows.begin; r < rows.end; r += ROWS) {
        const int64_t tall = least(ROWS, rows.end - r), row = s->ta ? 1 : inner;
        pack_rows(block, a, r * line, s, tall, m);
        for (int64_t c = 0; c < s->cols; c += COLS) {
            const int64_t wide = least(COLS, s->cols - c);
            for (int64_t n = 0; n < m; n++) {
                for (int64_t i = tall * n / m; i < tall * (n + 1) / m; i++)  // the result's memory, until it is written
                    for (int64_t j = 0; j < wide; j++)
                        __builtin_prefetch(to_at(out, s->of_out, ((r + i) * s->cols + c + j) * s->samples), 1);
                for (int64_t j = 0; j < wide; j += WIDE)
                    ag_panel(made + n * of_c + j, COLS, tall, least(WIDE, wide - j), block + n * of_a,
                             TALL * row, row, s->ta ? ROWS : 1, panels + n * of_b + (c + j) * inner, WIDE, inner, 0);
            }
            for (int64_t i = 0; i < tall; i++)
                ag_turn_to(out, s->of_out, ((r + i) * s->cols + c) * s->samples, s->samples, made + i * COLS, of_c, m, wide);
        }
    }
    return 1;
}

// work: outer * rows * cols * inner * samples
KERNEL(sample_matmul, {
    number *out; const number *a; const number *b;
    int64_t outer; int64_t rows; int64_t cols; int64_t inner; int64_t samples; int64_t ta; int64_t tb; int64_t types;
}) {
    const sizes s = {a->outer, a->rows, a->cols, a->inner, a->samples, a->ta, a->tb, type_of(a->types, 0),
                     type_of(a->types, 1), type_of(a->types, 2)};
    const int64_t split = WIDTH < GROUP || s.samples < WIDTH;  // what is read and written at a time is less than a line
    const int64_t large = split && s.cols * s.inner > LARGE && s.inner <= DEEP, width = large ? GROUP : WIDTH;
    const int64_t groups = (s.samples + width - 1) / width, units = s.outer * groups;
    if (!units) return;
    // As every cut packs b, there are few; but groups lie beside each other, and threads that write some each would wait
    // for the lines that another one's core looks ahead to.
    const int64_t wanted = (parts + 1) / 2, threads = (parts + PARTS_PER_THREAD - 1) / PARTS_PER_THREAD;
    const int64_t rows = groups > 1 ? s.rows / (large ? 2 * ROWS : 4 * HIGH) : 1, by_rows = least(rows, threads / s.outer);
    const int64_t by_units = (wanted + units - 1) / units, cuts = by_rows > by_units ? by_rows : by_units;
    const span mine = share(units * cuts, 1, part, parts);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const int64_t o = i / groups / cuts, n = i % groups * width, m = least(width, s.samples - n);
        const number *of_a = from_at(a->a, s.of_a, o * s.rows * s.inner * s.samples + n);
        const number *of_b = from_at(a->b, s.of_b, o * s.inner * s.cols * s.samples + n);
        number *out = to_at(a->out, s.of_out, o * s.rows * s.cols * s.samples + n);
        const int moves = large || (m < WIDTH && s.inner <= DEEP);  // fewer samples would leave lanes idle
        const span rows = share(s.rows, moves ? TALL : HIGH, i / groups % cuts, cuts);
        if (!(moves ? of_large : of_small)(out, of_a, of_b, &s, rows, m)) slowly(out, of_a, of_b, &s, rows, m);
    }
}
