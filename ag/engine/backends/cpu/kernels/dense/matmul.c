// Products of matrices: one, one with the sums of the first factor's rows, and a batch in pieces of the inner axis; and
// one whose first factor is packed.
// The result is cut into panels of WIDE columns, and these into tiles (tiles.h).  Large factors are packed first: of B,
// some panels of DEEP rows, which stay in the second-level cache, and of A a block of TALL_BLOCK rows.
// contract: a product and a sum may become one operation (ag.h)
#include "stored.h"

enum { PANELS = 16, TALL_BLOCK = 16 * TALL, PITCH = DEEP + 16, LARGE = 1 << 15, STRIP = 8, FEW = 4,
       HELD = 1024, TURN = 64, BLOCKS = TALL == 8 ? BLOCK_OF : 3 * BLOCK_OF };  // the last: of rows, a multiple of TALL and BLOCK_OF

// Products of small parts of factors as they are, for where there is no memory: the same bits, slowly.
static void multiply_plainly(const product *p, span rows, span cols) {
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t j = cols.begin; j < cols.end; j++) {
            float total = 0.0f;
            for (int64_t k = 0; k < p->inner; k += DEEP) {
                float sum = 0.0f;
                for (int64_t l = k; l < least(k + DEEP, p->inner); l++)
                    sum += ag_number(&p->a, p->a.turned ? l * p->a.step + i : i * p->a.step + l) *
                           ag_number(&p->b, p->b.turned ? j * p->b.step + l : l * p->b.step + j);
                total = k ? total + sum : sum;
            }
            put_at(p->c, p->type, i * p->cols + j, total);
        }
}

// Rows k to k + deep of `cols` columns of B, rows of WIDE.
static void pack_panel(float *to, const operand *b, int64_t k, int64_t deep, int64_t col, int64_t cols) {
    const float *from = b->at;
    if (b->turned) {
        float line[WIDE * TURN];
        if (!b->type) ag_turn(to, WIDE, from + col * b->step + k, b->step, cols, deep);
        for (int64_t l = 0; b->type && l < deep; l += TURN) {
            const int64_t few = least(TURN, deep - l);
            ag_load_rows(line, TURN, b, col * b->step + k + l, cols, few);
            ag_turn(to + l * WIDE, WIDE, line, TURN, cols, few);
        }
        return;
    }
    from += k * b->step + col;
    if (b->type) {
        if (cols < WIDE) memset(to, 0, (size_t)(deep * WIDE) * sizeof *to);
        ag_load_rows(to, WIDE, b, k * b->step + col, deep, cols);
        return;
    }
    if (cols == WIDE) {
        for (int64_t i = 0; i < deep; i++, to += WIDE, from += b->step) {
            put(to, get(from));
            put(to + WIDTH, get(from + WIDTH));
        }
        return;
    }
    for (int64_t i = 0; i < deep; i++, to += WIDE, from += b->step) {
        memset(to, 0, WIDE * sizeof *to);
        memcpy(to, from, (size_t)cols * sizeof *to);
    }
}

// Rows of A, DEEP of their places: side by side, or in tiles if A is transposed.
static void pack_rows(float *to, const operand *a, int64_t row, int64_t rows, int64_t k, int64_t deep) {
    if (!a->turned) {
        const int64_t first = row * a->step + k;
        if (a->type) ag_load_rows(to, PITCH, a, first, rows, deep);
        for (int64_t i = 0; !a->type && i < rows; i++)
            memcpy(to + i * PITCH, (const float *)a->at + first + i * a->step, (size_t)deep * sizeof *to);
        return;
    }
    if (a->type) {  // whole blocks of rows of A as they lie in memory, which then go into all tiles
        enum { LINES = 8, PLACES = TALL_BLOCK + 16, COPIED = 8 };  // COPIED - TALL behind a tile's are overwritten
        ALIGNED float lines[LINES * PLACES];
        for (int64_t l = 0; l < deep; l += LINES) {
            const int64_t some = least(LINES, deep - l);
            ag_load_rows(lines, PLACES, a, (k + l) * a->step + row, some, rows);
            for (int64_t i = 0; i < rows; i += TALL)
                for (int64_t j = 0; j < some; j++)
                    memcpy(to + i * PITCH + (l + j) * TALL, lines + j * PLACES + i, COPIED * sizeof *to);
        }
        return;
    }
    for (int64_t i = 0; i < rows; i += TALL, to += TALL * PITCH) {
        const float *from = (const float *)a->at + k * a->step + row + i;
        const int64_t tall = least(TALL, rows - i);
        for (int64_t l = 0; l < deep; l++, from += a->step) {
            if (tall == TALL) memcpy(to + l * TALL, from, TALL * sizeof *to);  // some instructions, and no call
            else memcpy(to + l * TALL, from, (size_t)tall * sizeof *to);
        }
    }
}

// The tiles of some rows and columns of the result.
static void multiply(const product *p, span rows, span cols) {
    const int64_t tall = rows.end - rows.begin, wide = cols.end - cols.begin, inner = p->inner;
    if (tall <= 0 || wide <= 0) return;
    const int large = tall * wide * inner >= LARGE;
    // What becomes 16 bits is held in float32 until its sums are whole, some columns of at most HELD rows.
    const int64_t line = p->type ? least(up(wide, WIDE), PANELS * WIDE) : p->cols;
    const int64_t held = p->type ? (inner > DEEP ? tall : TALL_BLOCK) * line : 0;
    // A whole A of a few blocks is packed once for all columns.
    const int once = inner <= DEEP && wide > PANELS * WIDE && tall <= 4 * TALL_BLOCK;
    const int64_t room_a = (once ? up(tall, TALL_BLOCK) : TALL_BLOCK) * PITCH;
    float *panels = ag_scratch(PANELS * DEEP * WIDE + room_a + held), *blocks = panels + PANELS * DEEP * WIDE;
    float *made = blocks + room_a;
    if (!panels) {
        multiply_plainly(p, rows, cols);
        return;
    }
    const operand *a = &p->a, *b = &p->b;
    const int64_t row_a = a->turned ? 1 : a->step, step_a = a->turned ? a->step : 1;
    // A is read again for every panel.  Few of them find its rows in the cache, where these are in one piece.
    const int packs_a = a->type || (large && wide > (a->turned ? 1 : FEW) * WIDE);
    const int packs_b = b->type || b->turned || (large && tall > 2 * TALL);
    for (int64_t col = cols.begin; col < cols.end; col += PANELS * WIDE) {
        const int64_t end = least(col + PANELS * WIDE, cols.end);
        for (int64_t k = 0; k < inner || k == 0; k += DEEP) {
            const int64_t deep = least(DEEP, inner - k);
            const int64_t first = packs_b ? col : end - (end - col) % WIDE;  // the last may have too few columns
            // Some rows of all panels at a time: rows of B are long, and lie on as many pages, often in the same few
            // places of the cache.
            const int64_t strip = b->turned ? deep : STRIP;
            for (int64_t l = 0; l < deep; l += strip)
                for (int64_t j = first; j < end; j += WIDE)
                    pack_panel(panels + (j - col) * DEEP + l * WIDE, b, k + l, least(strip, deep - l), j,
                               least(WIDE, end - j));
            for (int64_t i = rows.begin; i < rows.end; i += TALL_BLOCK) {
                const int64_t some = least(TALL_BLOCK, rows.end - i);
                float *sums = inner > DEEP ? made + (i - rows.begin) * line : made;
                float *block = once ? blocks + (i - rows.begin) * PITCH : blocks;
                if (packs_a && (!once || col == cols.begin)) pack_rows(block, a, i, some, k, deep);
                for (int64_t j = col; j < end; j += WIDE) {
                    const int64_t few = least(WIDE, end - j);
                    const int packed = packs_b || few < WIDE;
                    const float *under = packed ? panels + (j - col) * DEEP : (const float *)b->at + k * b->step + j;
                    const int64_t step_b = packed ? WIDE : b->step;
                    float *c = p->type ? sums + j - col : p->c + i * line + j;
                    if (packs_a)
                        ag_panel(c, line, some, few, block, TALL * PITCH, a->turned ? 1 : PITCH,
                                 a->turned ? TALL : 1, under, step_b, deep, k > 0);
                    else
                        ag_panel(c, line, some, few, (const float *)a->at + i * row_a + k * step_a, TALL * row_a,
                                 row_a, step_a, under, step_b, deep, k > 0);
                }
                for (int64_t l = 0; p->type && k + deep == inner && l < some; l++)
                    kept(p->c, p->type, (i + l) * p->cols + col, end - col, sums + l * line);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------- vectors

// The sum of the lanes, in the order of a tree.
INLINE float lanes_of(reg v) {
    float x[WIDTH];
    put(x, v);
    for (int width = WIDTH / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}

// The products of `rows` rows of x, from number `first` on, and v.
INLINE void some_rows_by_vector(int type, int rows, float *y, const operand *x, int64_t first, const float *v,
                                int64_t inner) {
    float total[4] = {0.0f};
    for (int64_t k = 0; k < inner; k += 8 * DEEP) {
        const int64_t end = least(k + 8 * DEEP, inner);
        reg p[4] = {{0}}, q[4] = {{0}};
        int64_t l = k;
        for (; l + AT_A_TIME(type) <= end; l += AT_A_TIME(type))
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                reg some[BLOCK_OF];
                const int64_t at = first + i * x->step + l;
                load_regs(type, x, x->first + at, some);
                expect_quants(type, x, x->first + at);
                for (int j = 0; j < AT_A_TIME(type) / WIDTH; j += 2) {
                    p[i] += some[j] * get(v + l + j * WIDTH);
                    q[i] += some[j + 1] * get(v + l + (j + 1) * WIDTH);
                }
            }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            float rest = 0.0f;
            for (int64_t m = l; m < end; m++) rest += ag_number(x, first + i * x->step + m) * v[m];
            total[i] += lanes_of(p[i] + q[i]) + rest;
        }
    }
    for (int i = 0; i < rows; i++) y[i] = total[i];
}

INLINE void rows_of_type(int type, float *y, const operand *x, const float *v, int64_t inner, span rows) {
    int64_t i = rows.begin;
    for (; i + 4 <= rows.end; i += 4) some_rows_by_vector(type, 4, y + i - rows.begin, x, i * x->step, v, inner);
    for (; i < rows.end; i++) some_rows_by_vector(type, 1, y + i - rows.begin, x, i * x->step, v, inner);
}

// y[i - rows.begin] = the product of row i of x [rows, inner] and v.
static void rows_by_vector(float *y, const operand *x, const float *v, int64_t inner, span rows) {
    if (inner >= WIDE) {
        OF_TYPE(x, rows_of_type, y, x, v, inner, rows)
        return;
    }
    for (int64_t i = rows.begin; i < rows.end; i++) {
        float total = 0.0f;
        for (int64_t k = 0; k < inner; k++) total += ag_number(x, i * x->step + k) * v[k];
        y[i - rows.begin] = total;
    }
}

// y[i - cols.begin] = the product of column i of x [inner, cols] and v.
static void vector_by_columns(float *y, const operand *x, const float *v, int64_t inner, span cols) {
    enum { BLOCK = 1024 };
    ALIGNED float sum[BLOCK], loaded[4 * BLOCK];
    const int64_t step = x->type ? BLOCK : x->step;
    for (int64_t c = cols.begin; c < cols.end; c += BLOCK) {
        const int64_t m = least(BLOCK, cols.end - c);
        float *to = y + c - cols.begin;
        memset(to, 0, (size_t)m * sizeof *y);
        for (int64_t k = 0; k < inner; k += DEEP) {
            const int64_t end = least(k + DEEP, inner);
            memset(sum, 0, sizeof sum);
            for (int64_t l = k, count; l < end; l += count) {
                count = l + 4 <= end ? 4 : 1;
                const float *row = x->type ? loaded : (const float *)x->at + l * step + c;
                if (x->type) ag_load_rows(loaded, BLOCK, x, l * x->step + c, count, m);
                if (count == 1) {
                    for (int64_t i = 0; i < m; i++) sum[i] += v[l] * row[i];
                    continue;
                }
                for (int64_t i = 0; i < m; i++) {
                    float t = sum[i] + v[l] * row[i];
                    t += v[l + 1] * row[i + step];
                    t += v[l + 2] * row[i + 2 * step];
                    sum[i] = t + v[l + 3] * row[i + 3 * step];
                }
            }
            for (int64_t i = 0; i < m; i++) to[i] += sum[i];
        }
    }
}

// A matrix by a vector, whose numbers lie side by side; with `swap` the vector is A, and the matrix B transposed.
static void multiply_vector(const product *p, int swap, span s) {
    const operand *x = swap ? &p->b : &p->a, *vector = swap ? &p->a : &p->b;
    const float *v = vector->at;
    float *y = p->c + s.begin;
    if (vector->type || p->type) {
        float *loaded = ag_scratch(up(p->inner, BLOCK_OF) + s.end - s.begin);
        if (!loaded) {
            const span one = {0, 1};
            multiply_plainly(p, swap ? one : s, swap ? s : one);
            return;
        }
        if (vector->type) {
            ag_load(loaded, vector, 0, p->inner);
            v = loaded;
        }
        y = room(p->c, p->type, s.begin, loaded + up(p->inner, BLOCK_OF));
    }
    (!x->turned == swap ? vector_by_columns : rows_by_vector)(y, x, v, p->inner, s);
    kept(p->c, p->type, s.begin, s.end - s.begin, y);
}

// ---------------------------------------------------------------------------------------------- shares

// The part is a rectangle of the result, as square as pays.
void ag_multiply(const product *p, int64_t part, int64_t parts) {
    const int whole = in_blocks(&p->a) && p->a.turned;  // shares of A's rows have whole blocks
    if (p->cols == 1 || p->rows == 1) {  // a matrix by a vector
        const int swap = p->cols != 1;
        const span s = share(swap ? p->cols : p->rows, whole ? BLOCK_OF : LANES, part, parts);
        multiply_vector(p, swap, s);
        return;
    }
    const int64_t tall = (p->rows + TALL - 1) / TALL, wide = (p->cols + WIDE - 1) / WIDE;
    int64_t down = 1, least_cost = INT64_MAX;
    for (int64_t d = 1; d <= parts; d++) {
        if (parts % d) continue;
        const int64_t across = parts / d, rows = (tall + d - 1) / d * TALL, cols = (wide + across - 1) / across * WIDE;
        const int64_t cost = rows * cols + 4 * (rows + cols);  // of the tiles, and of packing
        if (cost < least_cost) {
            least_cost = cost;
            down = d;
        }
    }
    const int64_t across = parts / down;
    const span rows = share(p->rows, whole ? BLOCKS : TALL, part / across, down);
    for (int64_t i = rows.begin, end; i < rows.end; i = end) {
        end = p->type ? least(i + HELD, rows.end) : rows.end;
        multiply(p, (span){i, end}, share(p->cols, WIDE, part % across, across));
    }
}

// work: rows * cols * inner
KERNEL(matmul, {
    number *out; const number *a; const number *b; int64_t rows; int64_t cols; int64_t inner; int64_t ta; int64_t tb;
    int64_t types;
}) {
    const product p = {a->out, numbers(a->a, 0, type_of(a->types, 1), a->ta ? a->rows : a->inner, a->ta),
                       numbers(a->b, 0, type_of(a->types, 2), a->tb ? a->inner : a->cols, a->tb), a->rows, a->cols,
                       a->inner, type_of(a->types, 0)};
    ag_multiply(&p, part, parts);
}

// work: rows * cols * inner
KERNEL(matmul_sums, {
    number *out; float *row_sums; const number *a; const number *b;
    int64_t rows; int64_t cols; int64_t inner; int64_t ta; int64_t tb; int64_t types;
}) {
    const product p = {a->out, numbers(a->a, 0, type_of(a->types, 2), a->ta ? a->rows : a->inner, a->ta),
                       numbers(a->b, 0, type_of(a->types, 3), a->tb ? a->inner : a->cols, a->tb), a->rows, a->cols,
                       a->inner, type_of(a->types, 0)};
    ag_multiply(&p, part, parts);
    const pieces_of_axis of_a = {a->ta ? 1 : a->rows, a->inner, a->ta ? a->rows : 1, 1, a->inner};
    ag_add_up(a->row_sums, a->a, type_of(a->types, 2), of_a, 1.0f, part, parts);
}

// work: batch * rows * cols * inner
KERNEL(batched_matmul, {
    float *out; const number *a; const number *b;
    int64_t batch; int64_t pieces; int64_t rows; int64_t cols; int64_t inner; int64_t chunk; int64_t ta; int64_t tb;
    int64_t types;
}) {
    const int64_t count = a->pieces * a->batch, cuts = count < parts ? (parts + count - 1) / (count ? count : 1) : 1;
    const span s = share(count * cuts, 1, part, parts);
    const int64_t step_a = a->ta ? a->rows : a->inner, step_b = a->tb ? a->inner : a->cols;
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t each = i / cuts, piece = each / a->batch, matrix = each % a->batch, k = piece * a->chunk;
        const int64_t first = matrix * a->rows * a->inner + (a->ta ? k * step_a : k);
        const int64_t second = matrix * a->inner * a->cols + (a->tb ? k : k * step_b);
        const product p = {a->out + each * a->rows * a->cols, numbers(a->a, first, type_of(a->types, 1), step_a, a->ta),
                           numbers(a->b, second, type_of(a->types, 2), step_b, a->tb), a->rows, a->cols,
                           least(a->chunk, a->inner - k), FLOATS};
        ag_multiply(&p, i % cuts, cuts);
    }
}

// work: rows * cols * inner
KERNEL(packed_matmul, {
    float *out; const float *b; const uint32_t *words;
    int64_t rows; int64_t cols; int64_t inner; int64_t ta; int64_t type; int64_t planes[3];
}) {
    const product p = {a->out, packed(a->words, a->ta ? a->rows : a->inner, a->ta, a->type, a->planes),
                       floats(a->b, a->cols, 0), a->rows, a->cols, a->inner, FLOATS};
    ag_multiply(&p, part, parts);
}

// work: rows * cols * inner
KERNEL(packed_matmul_pieces, {
    float *out; const float *b; const uint32_t *words;
    int64_t rows; int64_t cols; int64_t inner; int64_t chunk; int64_t ta; int64_t type; int64_t planes[3];
}) {
    product p = {a->out, packed(a->words, a->ta ? a->rows : a->inner, a->ta, a->type, a->planes),
                 floats(a->b, a->cols, 0), a->rows, a->cols, 0};
    for (int64_t k = 0; k < a->inner || k == 0; k += a->chunk, p.c += a->rows * a->cols) {
        p.inner = least(a->chunk, a->inner - k);
        p.a.first = a->ta ? k * a->rows : k;
        p.b.at = a->b + k * a->cols;
        ag_multiply(&p, part, parts);
    }
}
