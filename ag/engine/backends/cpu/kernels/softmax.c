// Softmax, its logarithm and softmax cross-entropy, with their gradients.  No chain has these functions, so a product and a
// sum may become one operation here.
// contract: a product and a sum may become one operation (ag.h)
#include "rows.h"

// ---------------------------------------------------------------------------------------------- softmax

// out = exp(x - top), of which it gives the sum
static double exponentials(float *out, const float *x, float top, int64_t n) {
    double total = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        EACH(i, m) out[b + i] = exp_(x[b + i] - top);
        total += block_sum(out + b, m);
    }
    return total;
}

// What an op is given: operands from element `first` on, and their types.
typedef struct { number *out; const number *x, *y; int of_out, of_x, of_y; int64_t first; } given;

// The largest, and the sum of exp(x - top), which are made once more where they are wanted: 16 bits would not hold them.
static double row_sums(const given *a, int64_t n, float *top) {
    ALIGNED float memory[BLOCK], terms[BLOCK];
    double total = 0.0;
    *top = -INFINITY_;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        *top = larger(*top, row_max(wide(a->x, a->of_x, a->first + b, m, memory), m));
    }
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *x = wide(a->x, a->of_x, a->first + b, m, memory);
        EACH(i, m) terms[i] = exp_(x[i] - *top);
        total += block_sum(terms, m);
    }
    return total;
}

static void softmax_row(const given *a, int64_t n) {
    ALIGNED float memory[2][BLOCK];
    float top;
    if (!a->of_out && !a->of_x) {
        const float *x = a->x + a->first;
        float *out = a->out + a->first;
        const float rate = (float)(1.0 / exponentials(out, x, row_max(x, n), n));
        EACH(i, n) out[i] *= rate;
        return;
    }
    const float rate = (float)(1.0 / row_sums(a, n, &top));
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *x = wide(a->x, a->of_x, a->first + b, m, memory[0]);
        float *to = room(a->out, a->of_out, a->first + b, memory[1]);
        EACH(i, m) to[i] = exp_(x[i] - top) * rate;
        kept(a->out, a->of_out, a->first + b, m, to);
    }
}

static void softmax_columns(const given *a, int64_t length, int64_t step, int64_t width) {
    const piece own = in_one_piece(a->x, a->of_x, a->first, length, step, width);
    ALIGNED float top[COLUMNS], part[COLUMNS], memory[2][COLUMNS];
    // of exp(x - top), which are made once more where there is none
    float *made = own.x != from_at(a->x, a->of_x, a->first) ? own.x : a->of_out ? NULL : a->out + a->first;
    ALIGNED double total[COLUMNS] = {0};
    column_max(top, own.x, own.type, length, own.step, width);
    DOWN(0, length, width, part, total, {
        const float *x = wide(own.x, own.type, k * own.step, width, memory[0]);
        float *to = made ? made + k * own.step : memory[1];
        EACH(c, width) {
            const float e = exp_(x[c] - top[c]);
            to[c] = e;
            part[c] += e;
        }
    })
    EACH(c, width) part[c] = (float)(1.0 / total[c]);
    for (int64_t k = 0; k < length; k++) {
        const float *x = made ? made + k * own.step : wide(own.x, own.type, k * own.step, width, memory[0]);
        float *to = room(a->out, a->of_out, a->first + k * step, memory[1]);
        if (made) EACH(c, width) to[c] = x[c] * part[c];
        else EACH(c, width) to[c] = exp_(x[c] - top[c]) * part[c];
        kept(a->out, a->of_out, a->first + k * step, width, to);
    }
}

// y (g - sum y g)
static void softmax_grad_row(const given *a, int64_t n) {
    ALIGNED float memory[2][BLOCK], terms[BLOCK];
    double total = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *y = wide(a->x, a->of_x, a->first + b, m, memory[0]), *g = wide(a->y, a->of_y, a->first + b, m, memory[1]);
        EACH(i, m) terms[i] = y[i] * g[i];
        total += block_sum(terms, m);
    }
    const float all = (float)total;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *y = wide(a->x, a->of_x, a->first + b, m, memory[0]), *g = wide(a->y, a->of_y, a->first + b, m, memory[1]);
        float *to = room(a->out, a->of_out, a->first + b, terms);
        EACH(i, m) to[i] = y[i] * (g[i] - all);
        kept(a->out, a->of_out, a->first + b, m, to);
    }
}

static void softmax_grad_columns(const given *a, int64_t length, int64_t step, int64_t width) {
    ALIGNED float part[COLUMNS], memory[3][COLUMNS];
    ALIGNED double total[COLUMNS] = {0};
    DOWN(0, length, width, part, total, {
        const int64_t at = a->first + k * step;
        const float *y = wide(a->x, a->of_x, at, width, memory[0]);
        const float *g = wide(a->y, a->of_y, at, width, memory[1]);
        EACH(c, width) part[c] += y[c] * g[c];
    })
    EACH(c, width) part[c] = (float)total[c];
    for (int64_t k = 0; k < length; k++) {
        const int64_t at = a->first + k * step;
        const float *y = wide(a->x, a->of_x, at, width, memory[0]), *g = wide(a->y, a->of_y, at, width, memory[1]);
        float *to = room(a->out, a->of_out, at, memory[2]);
        EACH(c, width) to[c] = y[c] * (g[c] - part[c]);
        kept(a->out, a->of_out, at, width, to);
    }
}

// ---------------------------------------------------------------------------------------------- log_softmax

static void log_softmax_row(const given *a, int64_t n) {
    ALIGNED float memory[2][BLOCK];
    float top;
    const float level = ln((float)row_sums(a, n, &top));
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *x = wide(a->x, a->of_x, a->first + b, m, memory[0]);
        float *to = room(a->out, a->of_out, a->first + b, memory[1]);
        EACH(i, m) to[i] = x[i] - top - level;
        kept(a->out, a->of_out, a->first + b, m, to);
    }
}

static void log_softmax_columns(const given *a, int64_t length, int64_t step, int64_t width) {
    const piece own = in_one_piece(a->x, a->of_x, a->first, length, step, width);
    ALIGNED float top[COLUMNS], part[COLUMNS], memory[2][COLUMNS];
    ALIGNED double total[COLUMNS] = {0};
    column_max(top, own.x, own.type, length, own.step, width);
    DOWN(0, length, width, part, total, {
        const float *x = wide(own.x, own.type, k * own.step, width, memory[0]);
        EACH(c, width) part[c] += exp_(x[c] - top[c]);
    })
    EACH(c, width) part[c] = ln((float)total[c]);
    for (int64_t k = 0; k < length; k++) {
        const float *x = wide(own.x, own.type, k * own.step, width, memory[0]);
        float *to = room(a->out, a->of_out, a->first + k * step, memory[1]);
        EACH(c, width) to[c] = x[c] - top[c] - part[c];
        kept(a->out, a->of_out, a->first + k * step, width, to);
    }
}

// g - exp(y) sum g
static void log_softmax_grad_row(const given *a, int64_t n) {
    ALIGNED float memory[3][BLOCK];
    const float all = (float)row_sum(from_at(a->y, a->of_y, a->first), a->of_y, n);
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *y = wide(a->x, a->of_x, a->first + b, m, memory[0]), *g = wide(a->y, a->of_y, a->first + b, m, memory[1]);
        float *to = room(a->out, a->of_out, a->first + b, memory[2]);
        EACH(i, m) to[i] = g[i] - exp_(y[i]) * all;
        kept(a->out, a->of_out, a->first + b, m, to);
    }
}

static void log_softmax_grad_columns(const given *a, int64_t length, int64_t step, int64_t width) {
    ALIGNED float part[COLUMNS], memory[3][COLUMNS];
    ALIGNED double total[COLUMNS] = {0};
    DOWN(0, length, width, part, total, {
        const float *g = wide(a->y, a->of_y, a->first + k * step, width, memory[1]);
        EACH(c, width) part[c] += g[c];
    })
    EACH(c, width) part[c] = (float)total[c];
    for (int64_t k = 0; k < length; k++) {
        const int64_t at = a->first + k * step;
        const float *y = wide(a->x, a->of_x, at, width, memory[0]), *g = wide(a->y, a->of_y, at, width, memory[1]);
        float *to = room(a->out, a->of_out, at, memory[2]);
        EACH(c, width) to[c] = g[c] - exp_(y[c]) * part[c];
        kept(a->out, a->of_out, at, width, to);
    }
}

#define ROWS_AND_COLUMNS(name, ...) \
    const span s = share(tiles_of(a->outer, a->length, a->inner), 1, part, parts); \
    for (int64_t i = s.begin; i < s.end; i++) { \
        const tile t = tile_at(i, a->length, a->inner); \
        const given of = {__VA_ARGS__, t.begin}; \
        if (a->inner == 1) name##_row(&of, a->length); \
        else name##_columns(&of, a->length, a->inner, t.width); \
    }
#define TWO a->out, a->x, NULL, type_of(a->types, 0), type_of(a->types, 1), FLOATS
#define THREE a->out, a->y, a->g, type_of(a->types, 0), type_of(a->types, 1), type_of(a->types, 2)

KERNEL(softmax, { number *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t types; }) {
    ROWS_AND_COLUMNS(softmax, TWO)
}

KERNEL(softmax_grad, {
    number *out; const number *y; const number *g; int64_t outer; int64_t length; int64_t inner; int64_t types;
}) {
    ROWS_AND_COLUMNS(softmax_grad, THREE)
}

KERNEL(log_softmax, { number *out; const number *x; int64_t outer; int64_t length; int64_t inner; int64_t types; }) {
    ROWS_AND_COLUMNS(log_softmax, TWO)
}

KERNEL(log_softmax_grad, {
    number *out; const number *y; const number *g; int64_t outer; int64_t length; int64_t inner; int64_t types;
}) {
    ROWS_AND_COLUMNS(log_softmax_grad, THREE)
}

// ---------------------------------------------------------------------------------------------- cross-entropy
// x[classes, batch]; dx may be x: each element is read before it is written, and x no more after that.

// In float32, in the place of the gradient if x has 16 bits: the columns of a tile.
static const float *widened(float *dx, const number *x, int type, tile at, int64_t rows, int64_t step) {
    for (int64_t k = 0; type && k < rows; k++)
        ag_to_floats(dx + at.begin + k * step, from_at(x, type, at.begin + k * step), at.width, type);
    return type ? dx : x;
}

// A batch of one.
static void cross_entropy_row(float *loss, float *dx, const float *x, const float *t, int64_t n, float factor) {
    ALIGNED float terms[BLOCK];
    const float top = row_max(x, n);
    double sum = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        EACH(i, m) terms[i] = (t[b + i] == 0.0f ? 0.0f : x[b + i] - top) * t[b + i];
        sum += block_sum(terms, m);
    }
    const float weight = (float)row_sum(t, FLOATS, n), mass = (float)exponentials(dx, x, top, n), ratio = weight / mass;
    *loss = ln(mass) * weight - (float)sum;
    EACH(i, n) dx[i] = (dx[i] * ratio - t[i]) * factor;
}

KERNEL(softmax_cross_entropy, {
    float *losses; float *dx; const number *x; const float *t; int64_t classes; int64_t batch; double factor; int64_t types;
}) {
    const int64_t n = a->classes, step = a->batch;
    const float factor = (float)a->factor;
    const span s = share(tiles_of(1, n, step), 1, part, parts);
    if (step == 1) {
        const tile row = {.width = n};
        if (s.begin < s.end)
            cross_entropy_row(a->losses, a->dx, widened(a->dx, a->x, type_of(a->types, 2), row, 1, n), a->t, n, factor);
        return;
    }
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile at = tile_at(i, n, step);
        const int64_t width = at.width;
        const float *x = widened(a->dx, a->x, type_of(a->types, 2), at, n, step) + at.begin, *t = a->t + at.begin;
        float *dx = a->dx + at.begin, *losses = a->losses + at.begin;
        ALIGNED float top[COLUMNS], mass[COLUMNS], weight[COLUMNS], loss[COLUMNS];
        ALIGNED double masses[COLUMNS] = {0}, weights[COLUMNS] = {0}, sum[COLUMNS] = {0};
        column_max(top, x, FLOATS, n, step, width);
        for (int64_t begin = 0; begin < n; begin += STRIDE) {
            EACH(c, width) mass[c] = weight[c] = loss[c] = 0.0f;
            for (int64_t k = begin * step; k < least(begin + STRIDE, n) * step; k += step)
                EACH(c, width) {
                    const float z = x[k + c] - top[c], e = exp_(z);
                    dx[k + c] = e;
                    mass[c] += e;
                    weight[c] += t[k + c];
                    loss[c] += (t[k + c] == 0.0f ? 0.0f : z) * t[k + c];  // 0 where z is -inf
                }
            EACH(c, width) {
                masses[c] += mass[c];
                weights[c] += weight[c];
                sum[c] += loss[c];
            }
        }
        EACH(c, width) {
            mass[c] = (float)masses[c];
            weight[c] = (float)weights[c];
            loss[c] = (float)sum[c];
        }
        EACH(c, width) losses[c] = ln(mass[c]) * weight[c] - loss[c];
        EACH(c, width) mass[c] = weight[c] / mass[c];
        for (int64_t k = 0; k < n * step; k += step) EACH(c, width) dx[k + c] = (dx[k + c] * mass[c] - t[k + c]) * factor;
    }
}

// An id that is no class makes its loss and its column of dx NaN, and NOTHING makes both 0.
#define NOTHING 0x80000000u
static void cross_entropy_ids_row(float *loss, float *dx, const float *x, uint32_t id, int64_t n, float factor) {
    if (id == NOTHING) {
        *loss = 0.0f;
        memset(dx, 0, (size_t)n * sizeof *dx);
        return;
    }
    const float top = row_max(x, n), z = id < n ? x[id] - top : __builtin_nanf("");
    const float mass = (float)exponentials(dx, x, top, n), scale = id < n ? factor / mass : __builtin_nanf("");
    *loss = ln(mass) - z;
    EACH(i, n) dx[i] *= scale;
    if (id < n) dx[id] -= factor;
}

KERNEL(softmax_cross_entropy_ids, {
    float *losses; float *dx; const number *x; const int32_t *ids; int64_t classes; int64_t batch; double factor;
    int64_t types;
}) {
    const int64_t n = a->classes, step = a->batch;
    const span s = share(tiles_of(1, n, step), 1, part, parts);
    if (step == 1) {
        const tile row = {.width = n};
        if (s.begin < s.end)
            cross_entropy_ids_row(a->losses, a->dx, widened(a->dx, a->x, type_of(a->types, 2), row, 1, n), (uint32_t)*a->ids, n,
                                  (float)a->factor);
        return;
    }
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile at = tile_at(i, n, step);
        const int64_t width = at.width;
        const int32_t *ids = a->ids + at.begin;
        const float *x = widened(a->dx, a->x, type_of(a->types, 2), at, n, step) + at.begin;
        float *dx = a->dx + at.begin, *losses = a->losses + at.begin;
        ALIGNED float top[COLUMNS], sum[COLUMNS];
        ALIGNED double total[COLUMNS] = {0};
        column_max(top, x, FLOATS, n, step, width);
        for (int64_t c = 0; c < width; c++)
            losses[c] = (uint32_t)ids[c] < n ? x[ids[c] * step + c] - top[c] : __builtin_nanf("");
        DOWN(0, n, width, sum, total, {
            EACH(c, width) {
                const float e = exp_(x[k * step + c] - top[c]);
                dx[k * step + c] = e;
                sum[c] += e;
            }
        })
        EACH(c, width) sum[c] = (float)total[c];
        for (int64_t c = 0; c < width; c++) {
            losses[c] = ln(sum[c]) - losses[c];
            sum[c] = (uint32_t)ids[c] < n ? (float)a->factor / sum[c] : __builtin_nanf("");
        }
        for (int64_t k = 0; k < n; k++) EACH(c, width) dx[k * step + c] *= sum[c];
        for (int64_t c = 0; c < width; c++) {
            if ((uint32_t)ids[c] < n) dx[ids[c] * step + c] -= (float)a->factor;
            if ((uint32_t)ids[c] != NOTHING) continue;
            losses[c] = 0.0f;
            for (int64_t k = 0; k < n; k++) dx[k * step + c] = 0.0f;
        }
    }
}

KERNEL(without, { int32_t *out; const int32_t *ids; int64_t n; int64_t ignore; }) {
    const span s = share(a->n, BLOCK, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) a->out[i] = a->ids[i] == a->ignore ? (int32_t)NOTHING : a->ids[i];
}
