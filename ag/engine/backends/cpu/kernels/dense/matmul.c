// Products of matrices: one, one with the sums of the first factor's rows, and a batch in pieces of the inner axis.
// The result is cut into panels of WIDE columns, and these into tiles (tiles.h).  Large factors are packed first: of B,
// some panels of DEEP rows, which stay in the second-level cache, and of A a block of TALL_BLOCK rows.
// contract: a product and a sum may become one operation (ag.h)
#include "tiles.h"

enum { PANELS = 16, TALL_BLOCK = 16 * TALL, PITCH = DEEP + 16, LARGE = 1 << 15, STRIP = 8, FEW = 4 };

// Products of small parts of factors as they are, for where there is no memory: the same bits, slowly.
static void multiply_plainly(const product *p, span rows, span cols) {
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t j = cols.begin; j < cols.end; j++) {
            float total = 0.0f;
            for (int64_t k = 0; k < p->inner; k += DEEP) {
                float sum = 0.0f;
                for (int64_t l = k; l < least(k + DEEP, p->inner); l++)
                    sum += p->a[p->ta ? l * p->step_a + i : i * p->step_a + l] *
                           p->b[p->tb ? j * p->step_b + l : l * p->step_b + j];
                total = k ? total + sum : sum;
            }
            p->c[i * p->cols + j] = total;
        }
}

// Rows k to k + deep of `cols` columns of B, rows of WIDE.
static void pack_panel(float *to, const product *p, int64_t k, int64_t deep, int64_t col, int64_t cols) {
    if (p->tb) {
        ag_turn(to, WIDE, p->b + col * p->step_b + k, p->step_b, cols, deep);
        return;
    }
    const float *from = p->b + k * p->step_b + col;
    if (cols == WIDE) {
        for (int64_t i = 0; i < deep; i++, to += WIDE, from += p->step_b) {
            put(to, get(from));
            put(to + WIDTH, get(from + WIDTH));
        }
        return;
    }
    for (int64_t i = 0; i < deep; i++, to += WIDE, from += p->step_b) {
        memset(to, 0, WIDE * sizeof *to);
        memcpy(to, from, (size_t)cols * sizeof *to);
    }
}

// Rows of A, DEEP of their places: side by side, or in tiles if A is transposed.
static void pack_rows(float *to, const product *p, int64_t row, int64_t rows, int64_t k, int64_t deep) {
    if (!p->ta) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + i * PITCH, p->a + (row + i) * p->step_a + k, (size_t)deep * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < rows; i += TALL, to += TALL * PITCH) {
        const float *from = p->a + k * p->step_a + row + i;
        const int64_t tall = least(TALL, rows - i);
        for (int64_t l = 0; l < deep; l++, from += p->step_a) {
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
    float *panels = ag_scratch(PANELS * DEEP * WIDE + TALL_BLOCK * PITCH), *block = panels + PANELS * DEEP * WIDE;
    if (!panels) {
        multiply_plainly(p, rows, cols);
        return;
    }
    const int64_t row_a = p->ta ? 1 : p->step_a, step_a = p->ta ? p->step_a : 1;
    // A is read again for every panel.  Few of them find its rows in the cache, where these are in one piece.
    const int packs_a = large && wide > (p->ta ? 1 : FEW) * WIDE, packs_b = p->tb || (large && tall > 2 * TALL);
    for (int64_t col = cols.begin; col < cols.end; col += PANELS * WIDE) {
        const int64_t end = least(col + PANELS * WIDE, cols.end);
        for (int64_t k = 0; k < inner || k == 0; k += DEEP) {
            const int64_t deep = least(DEEP, inner - k);
            const int64_t first = packs_b ? col : end - (end - col) % WIDE;  // the last may have too few columns
            // Some rows of all panels at a time: rows of B are long, and lie on as many pages, often in the same few
            // places of the cache.
            const int64_t strip = p->tb ? deep : STRIP;
            for (int64_t l = 0; l < deep; l += strip)
                for (int64_t j = first; j < end; j += WIDE)
                    pack_panel(panels + (j - col) * DEEP + l * WIDE, p, k + l, least(strip, deep - l), j,
                               least(WIDE, end - j));
            for (int64_t i = rows.begin; i < rows.end; i += TALL_BLOCK) {
                const int64_t some = least(TALL_BLOCK, rows.end - i);
                if (packs_a) pack_rows(block, p, i, some, k, deep);
                for (int64_t j = col; j < end; j += WIDE) {
                    const int64_t few = least(WIDE, end - j);
                    const int packed = packs_b || few < WIDE;
                    const float *b = packed ? panels + (j - col) * DEEP : p->b + k * p->step_b + j;
                    float *c = p->c + i * p->cols + j;
                    if (packs_a)
                        ag_panel(c, p->cols, some, few, block, TALL * PITCH, p->ta ? 1 : PITCH, p->ta ? TALL : 1, b,
                                 packed ? WIDE : p->step_b, deep, k > 0);
                    else
                        ag_panel(c, p->cols, some, few, p->a + i * row_a + k * step_a, TALL * row_a, row_a, step_a, b,
                                 packed ? WIDE : p->step_b, deep, k > 0);
                }
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

// The products of `rows` rows of x and v.
INLINE void some_rows_by_vector(int rows, float *y, const float *x, int64_t step, const float *v, int64_t inner) {
    float total[4] = {0.0f};
    for (int64_t k = 0; k < inner; k += 8 * DEEP) {
        const int64_t end = least(k + 8 * DEEP, inner);
        reg p[4] = {{0}}, q[4] = {{0}};
        int64_t l = k;
        for (; l + WIDE <= end; l += WIDE) {
            const reg first = get(v + l), second = get(v + l + WIDTH);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                p[i] += get(x + i * step + l) * first;
                q[i] += get(x + i * step + l + WIDTH) * second;
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            float rest = 0.0f;
            for (int64_t m = l; m < end; m++) rest += x[i * step + m] * v[m];
            total[i] += lanes_of(p[i] + q[i]) + rest;
        }
    }
    for (int i = 0; i < rows; i++) y[i] = total[i];
}

// y[i] = the product of row i of x [rows, inner] and v.
static void rows_by_vector(float *y, const float *x, int64_t step, const float *v, int64_t inner, span rows) {
    int64_t i = rows.begin;
    if (inner < WIDE) {
        for (; i < rows.end; i++) {
            float total = 0.0f;
            for (int64_t k = 0; k < inner; k++) total += x[i * step + k] * v[k];
            y[i] = total;
        }
        return;
    }
    for (; i + 4 <= rows.end; i += 4) some_rows_by_vector(4, y + i, x + i * step, step, v, inner);
    for (; i < rows.end; i++) some_rows_by_vector(1, y + i, x + i * step, step, v, inner);
}

// y[i] = the product of column i of x [inner, cols] and v.
static void vector_by_columns(float *y, const float *x, int64_t step, const float *v, int64_t inner, span cols) {
    enum { BLOCK = 1024 };
    float sum[BLOCK];
    for (int64_t c = cols.begin; c < cols.end; c += BLOCK) {
        const int64_t m = least(BLOCK, cols.end - c);
        memset(y + c, 0, (size_t)m * sizeof *y);
        for (int64_t k = 0; k < inner; k += DEEP) {
            const int64_t end = least(k + DEEP, inner);
            const float *row = x + k * step + c;
            int64_t l = k;
            memset(sum, 0, sizeof sum);
            for (; l + 4 <= end; l += 4, row += 4 * step)
                for (int64_t i = 0; i < m; i++) {
                    float t = sum[i] + v[l] * row[i];
                    t += v[l + 1] * row[i + step];
                    t += v[l + 2] * row[i + 2 * step];
                    sum[i] = t + v[l + 3] * row[i + 3 * step];
                }
            for (; l < end; l++, row += step)
                for (int64_t i = 0; i < m; i++) sum[i] += v[l] * row[i];
            for (int64_t i = 0; i < m; i++) y[c + i] += sum[i];
        }
    }
}

// ---------------------------------------------------------------------------------------------- shares

// The part is a rectangle of the result, as square as pays.
void ag_multiply(const product *p, int64_t part, int64_t parts) {
    if (p->cols == 1 || p->rows == 1) {  // a matrix by a vector
        const int swap = p->cols != 1;  // then it is the product of the transposed factors
        const int by_columns = swap ? !p->tb : p->ta != 0;
        const span s = share(swap ? p->cols : p->rows, LANES, part, parts);
        (by_columns ? vector_by_columns : rows_by_vector)(p->c, swap ? p->b : p->a, swap ? p->step_b : p->step_a,
                                                          swap ? p->a : p->b, p->inner, s);
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
    multiply(p, share(p->rows, TALL, part / across, down), share(p->cols, WIDE, part % across, across));
}

// work: rows * cols * inner
KERNEL(matmul, {
    float *out; const float *a; const float *b; int64_t rows; int64_t cols; int64_t inner; int64_t ta; int64_t tb;
}) {
    const product p = {a->out, a->a, a->b, a->rows, a->cols, a->inner, a->ta ? a->rows : a->inner,
                       a->tb ? a->inner : a->cols, a->ta, a->tb};
    ag_multiply(&p, part, parts);
}

// work: rows * cols * inner
KERNEL(matmul_sums, {
    float *out; float *row_sums; const float *a; const float *b;
    int64_t rows; int64_t cols; int64_t inner; int64_t ta; int64_t tb;
}) {
    const product p = {a->out, a->a, a->b, a->rows, a->cols, a->inner, a->ta ? a->rows : a->inner,
                       a->tb ? a->inner : a->cols, a->ta, a->tb};
    ag_multiply(&p, part, parts);
    const pieces_of_axis of_a = {a->ta ? 1 : a->rows, a->inner, a->ta ? a->rows : 1, 1, a->inner};
    ag_add_up(a->row_sums, a->a, of_a, 1.0f, part, parts);
}

// work: batch * rows * cols * inner
KERNEL(batched_matmul, {
    float *out; const float *a; const float *b;
    int64_t batch; int64_t pieces; int64_t rows; int64_t cols; int64_t inner; int64_t chunk; int64_t ta; int64_t tb;
}) {
    const int64_t count = a->pieces * a->batch, cuts = count < parts ? (parts + count - 1) / (count ? count : 1) : 1;
    const span s = share(count * cuts, 1, part, parts);
    const int64_t step_a = a->ta ? a->rows : a->inner, step_b = a->tb ? a->inner : a->cols;
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t number = i / cuts, piece = number / a->batch, matrix = number % a->batch, k = piece * a->chunk;
        const product p = {a->out + number * a->rows * a->cols,
                           a->a + matrix * a->rows * a->inner + (a->ta ? k * step_a : k),
                           a->b + matrix * a->inner * a->cols + (a->tb ? k : k * step_b),
                           a->rows, a->cols, least(a->chunk, a->inner - k), step_a, step_b, a->ta, a->tb};
        ag_multiply(&p, i % cuts, cuts);
    }
}
