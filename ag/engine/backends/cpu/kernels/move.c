// Kernels that move elements: copies, slices, transposition, columns by their ids.  Most move words of any type.
#include "rows.h"

typedef uint32_t __attribute__((may_alias)) word;

#define GRAIN 4096  // elements, about, that a part takes at least
#define SQUARE 16  // rows and columns that are transposed at a time: a cache line each

static inline int64_t grain_of(int64_t row) { return 1 + GRAIN / (row + 1); }  // in rows of so many elements

KERNEL(copy, { void *out; const void *x; int64_t n; }) {
    const span s = share(a->n, GRAIN, part, parts);
    memmove((word *)a->out + s.begin, (const word *)a->x + s.begin, (size_t)(s.end - s.begin) * sizeof(word));
}

// ---------------------------------------------------------------------------------------------- slices
// x[outer, length, inner]; places along an axis are start, start + step, ..., and a step may be negative.

// `count` rows of n elements each, `from` and `to` elements apart; they begin at elements `out_at` and `x_at`.
static void copy_rows(void *out_, int64_t out_at, int64_t to, const void *x_, int64_t x_at, int64_t from, int64_t count,
                      int64_t n, int type) {
    const int64_t size = bytes_of(type);
    char *out = (char *)out_ + out_at * size;
    const char *x = (const char *)x_ + x_at * size;
    if (to == n && from == n) memcpy(out, x, (size_t)(count * n * size));
    else if (n == 1 && type) EACH(k, count) ((half_word *)out)[k * to] = ((const half_word *)x)[k * from];
    else if (n == 1 && to == 1 && from == 2) EACH(k, count) ((word *)out)[k] = ((const word *)x)[2 * k];
    else if (n == 1 && to == 1 && from == -1) EACH(k, count) ((word *)out)[k] = ((const word *)x)[-k];
    else if (n == 1) EACH(k, count) ((word *)out)[k * to] = ((const word *)x)[k * from];
    else for (int64_t k = 0; k < count; k++) memcpy(out + k * to * size, x + k * from * size, (size_t)(n * size));
}

KERNEL(part, {
    void *out; const void *x; int64_t outer; int64_t length; int64_t inner; int64_t start; int64_t step; int64_t count;
    int64_t types;
}) {
    const int64_t n = a->inner;
    const span s = share(a->outer * a->count, grain_of(n), part, parts);
    for (int64_t r = s.begin; r < s.end;) {
        const int64_t o = r / a->count, k = r % a->count, rows = least(a->count - k, s.end - r);
        copy_rows(a->out, r * n, n, a->x, (o * a->length + a->start + k * a->step) * n, a->step * n, rows, n,
                  type_of(a->types, 0));
        r += rows;
    }
}

KERNEL(insert, {
    void *whole; const void *x; int64_t outer; int64_t length; int64_t inner; int64_t start; int64_t count; int64_t types;
}) {
    const int64_t n = a->inner;
    const span s = share(a->outer * a->count, grain_of(n), part, parts);
    for (int64_t r = s.begin; r < s.end;) {
        const int64_t o = r / a->count, k = r % a->count, rows = least(a->count - k, s.end - r);
        copy_rows(a->whole, (o * a->length + a->start + k) * n, n, a->x, r * n, n, rows, n, type_of(a->types, 0));
        r += rows;
    }
}

// The quotient rounded up, of a divisor that is positive.
static inline int64_t up(int64_t x, int64_t divisor) { return x >= 0 ? (x + divisor - 1) / divisor : -(-x / divisor); }

KERNEL(spread, {
    void *out; const void *x; int64_t outer; int64_t length; int64_t inner; int64_t start; int64_t step; int64_t count;
    int64_t types;
}) {
    const int64_t n = a->inner, step = a->step;
    const int type = type_of(a->types, 0);
    const span s = share(a->outer * a->length, grain_of(n), part, parts);
    for (int64_t r = s.begin; r < s.end;) {
        const int64_t o = r / a->length, k = r % a->length, rows = least(a->length - k, s.end - r);
        memset((char *)a->out + r * n * bytes_of(type), 0, (size_t)(rows * n * bytes_of(type)));
        // those places that are in k ... k + rows - 1
        const int64_t low = step > 0 ? up(k - a->start, step) : up(a->start - (k + rows - 1), -step);
        const int64_t high = step > 0 ? up(k + rows - a->start, step) : up(a->start - k + 1, -step);
        const int64_t first = low > 0 ? low : 0, end = least(high, a->count);
        if (first < end)
            copy_rows(a->out, (o * a->length + a->start + first * step) * n, step * n, a->x, (o * a->count + first) * n, n,
                      end - first, n, type);
        r += rows;
    }
}

// ---------------------------------------------------------------------------------------------- transposition

// Through memory of its own: rows that are some power of two apart push each other out of the cache.
#define TRANSPOSE(name, element) \
static inline void name(element *out, int64_t out_step, const element *x, int64_t x_step, int64_t rows, int64_t columns) { \
    element square[SQUARE][SQUARE]; \
    for (int64_t j = 0; j < columns; j++) memcpy(square[j], x + j * x_step, (size_t)rows * sizeof *x); \
    for (int64_t i = 0; i < rows; i++) \
        for (int64_t j = 0; j < columns; j++) out[i * out_step + j] = square[j][i]; \
}
TRANSPOSE(transpose, word)
TRANSPOSE(transpose_halves, half_word)

// Along the last axis of the result x goes in long steps: one by one along another axis, and in squares of the two.
static void permute_squares(void *out_, const void *x_, int type, const int64_t *shape, const int64_t *stride, int64_t ndim,
                            int64_t near, int64_t part, int64_t parts) {
    const int64_t last = ndim - 1, across = (shape[last] + SQUARE - 1) / SQUARE, down = (shape[near] + SQUARE - 1) / SQUARE;
    int64_t squares = across * down, step[8];
    for (int64_t k = last, n = 1; k >= 0; n *= shape[k--]) {
        step[k] = n;
        if (k != last && k != near) squares *= shape[k];
    }
    const span s = share(squares, 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t c = i % across * SQUARE, r = i / across % down * SQUARE;
        int64_t from = c * stride[last] + r, to = c + r * step[near];
        for (int64_t k = last - 1, rest = i / across / down; k >= 0; k--) {
            if (k == near) continue;
            from += rest % shape[k] * stride[k];
            to += rest % shape[k] * step[k];
            rest /= shape[k];
        }
        const int64_t rows = least(SQUARE, shape[near] - r), columns = least(SQUARE, shape[last] - c);
        word *out = (word *)out_ + to;
        const word *x = (const word *)x_ + from;
        if (type)
            transpose_halves((half_word *)out_ + to, step[near], (const half_word *)x_ + from, stride[last], rows, columns);
        else if (rows == SQUARE && columns == SQUARE) transpose(out, step[near], x, stride[last], SQUARE, SQUARE);
        else transpose(out, step[near], x, stride[last], rows, columns);
    }
}

KERNEL(permute, { void *out; const void *x; int64_t n; int64_t ndim; int64_t shape[8]; int64_t x_stride[8]; int64_t types; }) {
    const int type = type_of(a->types, 0);
    if (a->n == 0) return;
    for (int64_t k = 0; k < a->ndim - 1; k++)
        if (a->x_stride[k] == 1) {
            permute_squares(a->out, a->x, type, a->shape, a->x_stride, a->ndim, k, part, parts);
            return;
        }
    const int64_t row = a->ndim ? a->shape[a->ndim - 1] : 1;  // which lies in one piece
    const span s = share(a->n / row, grain_of(row), part, parts), all = {s.begin * row, s.end * row};
    for (int64_t r = s.begin; type && r < s.end; r++) {
        int64_t from = 0;
        for (int64_t k = a->ndim - 2, rest = r; k >= 0; rest /= a->shape[k--]) from += rest % a->shape[k] * a->x_stride[k];
        copy_rows(a->out, r * row, row, a->x, from, row, 1, row, type);
    }
    for (int64_t i = all.begin; !type && i < all.end; i += GRAIN) {
        float *out = (float *)a->out + i;
        const int64_t m = least(GRAIN, all.end - i);
        const float *x = ag_strided(a->x, 0, a->x_stride, a->shape, a->ndim, i, m, out);
        if (x != out) memcpy(out, x, (size_t)m * sizeof *x);
    }
}

// ---------------------------------------------------------------------------------------------- places by their ids
// x[outer, length, inner]; NOTHING takes 0 and goes nowhere, and another id that is no place leaves NaN.

#define NOTHING 0x80000000u
#define NAN_WORD 0x7fc00000u
#define HELD 65536  // words of a copy, at most; 64 columns, or an eighth

// An id, counted from the end of `ends` places if it is negative.
static inline uint32_t from_end(uint32_t id, int64_t ends) {
    return id >> 31 ? id + (uint32_t)ends : id;
}

// The word of x at an id, where the words of neighbouring ids are `step` apart.
static inline word taken(const word *x, uint32_t id, int64_t length, int64_t step) {
    return id < length ? x[id * step] : id == NOTHING ? 0 : NAN_WORD;
}

// The same where elements may have 16 bits.
static inline void take_one(void *out, int64_t i, const void *x, uint32_t id, int64_t length, int64_t step, int64_t at,
                            int type) {
    if (!type) ((word *)out)[i] = taken((const word *)x + at, id, length, step);
    else if (id < length) ((half_word *)out)[i] = ((const half_word *)x)[id * step + at];
    else ((half_word *)out)[i] = id == NOTHING ? 0 : type == BFLOATS ? 0x7FC0 : 0x7E00;
}

static int all_places(const uint32_t *ids, int64_t n, int64_t length) {
    uint32_t largest = 0;
    EACH(k, n) largest = ids[k] > largest ? ids[k] : largest;
    return largest < length;
}

enum { ROWS_AHEAD = 6 };  // a row's few columns end before the processor has guessed which come next

// Asks for the same columns some rows further on.
static inline void expect_columns(const word *x, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i += 16) __builtin_prefetch(x + ROWS_AHEAD * n + i);
}

// Copies m columns of `rows` rows.
static void copy_columns(word *to, int64_t to_step, const word *from, int64_t from_step, int64_t rows, int64_t m) {
    for (int64_t v = 0; v < rows; v++, to += to_step, from += from_step) {
        expect_columns(from, m, from_step);
        memcpy(to, from, (size_t)m * sizeof *to);
    }
}

// How many columns of an array [length, n] are copied, so that what is wanted of them lies in a near cache; 0 for none.
static int64_t columns_held(int64_t length, int64_t n) {
    const int64_t few = HELD / 8 / (length + 1), most = least(64, HELD / (length + 1));
    return least((few > most ? few : most) / 16 * 16, n);
}

KERNEL(take, {
    void *out; const void *x; const int32_t *ids; int64_t outer; int64_t length; int64_t inner; int64_t places;
    int64_t step_outer; int64_t step_place; int64_t step_inner; int64_t wraps; int64_t types;
}) {
    const int64_t n = a->inner, ends = a->wraps ? a->length : 0;
    const int type = type_of(a->types, 0);
    if (a->step_inner && n > 1 && !type) {  // an id for each element
        // Many are read from a copy of some columns, as rows may lie in one place of a cache.
        word *held = 2 * a->places >= a->length ? (word *)ag_scratch(HELD) : NULL;
        const int64_t room = held ? columns_held(a->length, n) : 0, size = least(room ? room : GRAIN, n);
        const int64_t tiles = size ? (n + size - 1) / size : 0;
        const span s = share(a->outer * tiles, grain_of(size * a->places), part, parts);
        for (int64_t r = s.begin; r < s.end; r++) {
            const int64_t o = r / tiles, begin = r % tiles * size, m = least(size, n - begin);
            const word *x = (const word *)a->x + o * a->length * n + begin;
            if (room) copy_columns(held, m, x, n, a->length, m);
            for (int64_t p = 0; p < a->places; p++) {
                const uint32_t *id = (const uint32_t *)a->ids + o * a->step_outer + p * a->step_place + begin * a->step_inner;
                word *out = (word *)a->out + (o * a->places + p) * n + begin;
                expect_columns(id, m * a->step_inner, a->step_place);
                expect_columns(out, m, n);
                if (room && a->step_inner == 1 && all_places(id, m, a->length))
#pragma GCC unroll 8
                    for (int64_t i = 0; i < m; i++) out[i] = held[id[i] * m + i];
                else
                    for (int64_t i = 0; i < m; i++) {
                        const uint32_t at = from_end(id[i * a->step_inner], ends);
                        out[i] = taken(room ? held + i : x + i, at, a->length, room ? m : n);
                    }
            }
        }
        return;
    }
    const span s = share(a->outer * a->places, grain_of(n), part, parts);
    for (int64_t r = s.begin; r < s.end;) {
        const int64_t o = r / a->places, p = r % a->places, rows = least(a->places - p, s.end - r);
        const uint32_t *ids = (const uint32_t *)a->ids + o * a->step_outer + p * a->step_place;
        const int64_t size = bytes_of(type);
        const word *x = (const word *)((const char *)a->x + o * a->length * n * size);
        word *out = (word *)((char *)a->out + r * n * size);
        if (a->step_inner && type)
            for (int64_t k = 0; k < rows * n; k++)
                take_one(out, k, x, from_end(ids[k], ends), a->length, n, k % n, type);
        else if (n == 1 && !type && a->step_place == 1 && all_places(ids, rows, a->length))
            for (int64_t k = 0; k < rows; k++) {
                uint32_t id = ids[k];
                __asm__("" : "+r"(id));  // one by one: instructions that gather take four times as long on AMD's
                out[k] = x[id];
            }
        else if (n == 1 && type && a->step_place == 1 && all_places(ids, rows, a->length))
            for (int64_t k = 0; k < rows; k++) ((half_word *)out)[k] = ((const half_word *)x)[ids[k]];
        else
            for (int64_t k = 0; k < rows; k++) {
                const uint32_t id = from_end(ids[k * a->step_place], ends);
                if (n > 1 && id < a->length) memcpy((char *)out + k * n * size, (const char *)x + id * n * size, (size_t)(n * size));
                else for (int64_t i = 0; i < n; i++) take_one(out, k * n + i, x, id, a->length, n, i, type);
            }
        r += rows;
    }
}

// Adds up in the order of the places, whoever makes a row.
KERNEL(scatter_add, {
    float *out; const number *g; const int32_t *ids; int64_t outer; int64_t length; int64_t inner; int64_t places;
    int64_t first; int64_t last; int64_t wraps; int64_t types;
}) {
    const int type = type_of(a->types, 1);
    float given[GRAIN];
    const int64_t n = a->inner, pieces = n > GRAIN ? (n + GRAIN - 1) / GRAIN : 1, size = (n + pieces - 1) / pieces;
    const span s = share(a->outer * pieces, 1, part, parts);
    for (int64_t r = s.begin; r < s.end; r++) {  // some columns side by side
        const int64_t o = r / pieces, begin = r % pieces * size, m = least(size, n - begin);
        float *out = a->out + o * a->length * n + begin;
        const int64_t g = o * a->places * n + begin;
        if (m == n) memset(out, 0, (size_t)(a->length * n) * sizeof *out);
        else for (int64_t v = 0; v < a->length; v++) memset(out + v * n, 0, (size_t)m * sizeof *out);
        int outside = 0;
        for (int64_t p = a->first; p < a->last; p++) {
            const uint32_t id = from_end((uint32_t)a->ids[p], a->wraps ? a->length : 0);
            if (id >= a->length) outside |= id != NOTHING;
            else if (n == 1) out[id] += number_at(a->g, type, g + p);
            else {
                const float *row = wide(a->g, type, g + p * n, m, given);
                EACH(i, m) out[id * n + i] += row[i];
            }
        }
        if (outside && a->length) EACH(i, m) out[i] = __builtin_nanf("");
    }
}

static inline float joined(int64_t how, float a, float b) {
    if (how == 0) return a + b;
    if (how == 1) return a * b;
    return a != a || (b == b && (how == 2 ? a >= b : a <= b)) ? a : b;
}

// Lets m elements meet those of a row at their ids; whether one is no place.
static inline __attribute__((always_inline)) int meet(int64_t how, word *out, int64_t row, const word *x,
                                                      const uint32_t *ids, int64_t m, int64_t length, int64_t ends) {
    int outside = 0;
    if (how == 0 && all_places(ids, m, length)) {
#pragma GCC unroll 8
        for (int64_t i = 0; i < m; i++) *(float *)(out + ids[i] * row + i) += ((const float *)x)[i];
        return 0;
    }
    for (int64_t i = 0; i < m; i++) {
        const uint32_t id = from_end(ids[i], ends);
        if (id >= length) {
            outside |= id != NOTHING;
            continue;
        }
        word *to = out + id * row + i;
        if (how == 4) *to = x[i];
        else *(float *)to = joined(how, *(float *)to, ((const float *)x)[i]);
    }
    return outside;
}

// Goes from place to place, so that every column has their order.
KERNEL(scatter_along, {
    word *out; const void *x; const int32_t *ids; int64_t outer; int64_t length; int64_t inner; int64_t places;
    int64_t first; int64_t last; int64_t how; int64_t wraps; int64_t types;
}) {
    const int64_t n = a->inner, few = columns_held(a->length, n), size = few && n > 1 ? few : least(GRAIN, n);
    const int64_t pieces = size ? (n + size - 1) / size : 0, ends = a->wraps ? a->length : 0;
    word *held = few && n > size && 2 * (a->last - a->first) >= a->length ? (word *)ag_scratch(HELD) : NULL;
    float given[HELD / 8];
    const span s = share(a->outer * pieces, grain_of((a->last - a->first) * size), part, parts);
    for (int64_t r = s.begin; r < s.end; r++) {
        const int64_t o = r / pieces, begin = r % pieces * size, m = least(size, n - begin), row = held ? m : n;
        word *whole = a->out + o * a->length * n + begin, *out = held ? held : whole;
        int outside = 0;
        if (held) copy_columns(held, m, whole, n, a->length, m);
        for (int64_t p = a->first; p < a->last; p++) {
            const int64_t from = (o * a->places + p) * n + begin;
            const uint32_t *ids = (const uint32_t *)a->ids + from;
            const word *x = (const word *)wide(a->x, type_of(a->types, 1), from, m, given);
            expect_columns(ids, m, n);
            expect_columns(x, m, n);
            if (a->how == 0) outside |= meet(0, out, row, x, ids, m, a->length, ends);
            else outside |= meet(a->how, out, row, x, ids, m, a->length, ends);
        }
        if (outside && a->length)  // once more, for the columns that have one
            for (int64_t p = a->first; p < a->last; p++) {
                const uint32_t *ids = (const uint32_t *)a->ids + (o * a->places + p) * n + begin;
                for (int64_t i = 0; i < m; i++) {
                    const uint32_t id = from_end(ids[i], ends);
                    if (id >= a->length && id != NOTHING) out[i] = NAN_WORD;
                }
            }
        if (held) copy_columns(whole, n, held, m, a->length, m);
    }
}

KERNEL(flat_ids, { int32_t *out; const int32_t *before; const int32_t *ids; int64_t n; int64_t length; }) {
    const span s = share(a->n, GRAIN, part, parts);
    const uint32_t length = (uint32_t)a->length;  // products of places are of 32 bits, as those of an array are
    EACH(k, s.end - s.begin) {
        const int64_t i = s.begin + k;
        const uint32_t id = (uint32_t)a->ids[i], place = a->ids[i] < 0 ? id + length : id, row = (uint32_t)a->before[i];
        a->out[i] = place < length && row < INT32_MAX ? (int32_t)(row * length + place) : INT32_MAX;
    }
}

KERNEL(sequence, { int32_t *out; const int32_t *first; int64_t n; int64_t step; }) {
    const span s = share(a->n, GRAIN, part, parts);
    EACH(i, s.end - s.begin) a->out[s.begin + i] = (int32_t)(*a->first + (s.begin + i) * a->step);
}
