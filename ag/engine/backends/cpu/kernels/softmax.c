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

static void softmax_row(float *out, const float *x, int64_t n) {
    const float rate = (float)(1.0 / exponentials(out, x, row_max(x, n), n));
    EACH(i, n) out[i] *= rate;
}

static void softmax_columns(float *out, const float *x, int64_t length, int64_t step, int64_t width) {
    const piece own = in_one_piece(x, FLOATS, 0, length, step, width);
    const float *from = own.x;
    float top[COLUMNS], part[COLUMNS], *made = own.x == x ? out : own.x;
    double total[COLUMNS] = {0};
    column_max(top, from, length, own.step, width);
    DOWN(0, length, width, part, total, {
        EACH(c, width) {
            const float e = exp_(from[k * own.step + c] - top[c]);
            made[k * own.step + c] = e;
            part[c] += e;
        }
    })
    EACH(c, width) top[c] = (float)(1.0 / total[c]);
    for (int64_t k = 0; k < length; k++) EACH(c, width) out[k * step + c] = made[k * own.step + c] * top[c];
}

KERNEL(softmax, { float *out; const float *x; int64_t outer; int64_t length; int64_t inner; }) {
    const span s = share(tiles_of(a->outer, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, a->length, a->inner);
        if (a->inner == 1) softmax_row(a->out + t.begin, a->x + t.begin, a->length);
        else softmax_columns(a->out + t.begin, a->x + t.begin, a->length, a->inner, t.width);
    }
}

// y (g - sum y g)
static void softmax_grad_row(float *out, const float *y, const float *g, int64_t n) {
    float terms[BLOCK];
    double total = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        EACH(i, m) terms[i] = y[b + i] * g[b + i];
        total += block_sum(terms, m);
    }
    const float all = (float)total;
    EACH(i, n) out[i] = y[i] * (g[i] - all);
}

static void softmax_grad_columns(float *out, const float *y, const float *g, int64_t length, int64_t step, int64_t width) {
    float part[COLUMNS];
    double total[COLUMNS] = {0};
    DOWN(0, length, width, part, total, { EACH(c, width) part[c] += y[k * step + c] * g[k * step + c]; })
    EACH(c, width) part[c] = (float)total[c];
    for (int64_t k = 0; k < length; k++) EACH(c, width) out[k * step + c] = y[k * step + c] * (g[k * step + c] - part[c]);
}

KERNEL(softmax_grad, {
    float *out; const float *y; const float *g; int64_t outer; int64_t length; int64_t inner;
}) {
    const span s = share(tiles_of(a->outer, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, a->length, a->inner);
        if (a->inner == 1) softmax_grad_row(a->out + t.begin, a->y + t.begin, a->g + t.begin, a->length);
        else softmax_grad_columns(a->out + t.begin, a->y + t.begin, a->g + t.begin, a->length, a->inner, t.width);
    }
}

// ---------------------------------------------------------------------------------------------- log_softmax

static void log_softmax_row(float *out, const float *x, int64_t n) {
    float terms[BLOCK];
    const float top = row_max(x, n);
    double total = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        EACH(i, m) terms[i] = exp_(x[b + i] - top);
        total += block_sum(terms, m);
    }
    const float level = ln((float)total);
    EACH(i, n) out[i] = x[i] - top - level;
}

static void log_softmax_columns(float *out, const float *x, int64_t length, int64_t step, int64_t width) {
    const piece own = in_one_piece(x, FLOATS, 0, length, step, width);
    const float *from = own.x;
    float top[COLUMNS], part[COLUMNS];
    double total[COLUMNS] = {0};
    column_max(top, from, length, own.step, width);
    DOWN(0, length, width, part, total, { EACH(c, width) part[c] += exp_(from[k * own.step + c] - top[c]); })
    EACH(c, width) part[c] = ln((float)total[c]);
    for (int64_t k = 0; k < length; k++) EACH(c, width) out[k * step + c] = from[k * own.step + c] - top[c] - part[c];
}

KERNEL(log_softmax, { float *out; const float *x; int64_t outer; int64_t length; int64_t inner; }) {
    const span s = share(tiles_of(a->outer, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, a->length, a->inner);
        if (a->inner == 1) log_softmax_row(a->out + t.begin, a->x + t.begin, a->length);
        else log_softmax_columns(a->out + t.begin, a->x + t.begin, a->length, a->inner, t.width);
    }
}

// g - exp(y) sum g
static void log_softmax_grad_row(float *out, const float *y, const float *g, int64_t n) {
    const float all = (float)row_sum(g, FLOATS, n);
    EACH(i, n) out[i] = g[i] - exp_(y[i]) * all;
}

static void log_softmax_grad_columns(float *out, const float *y, const float *g, int64_t length, int64_t step,
                                     int64_t width) {
    float part[COLUMNS];
    double total[COLUMNS] = {0};
    DOWN(0, length, width, part, total, { EACH(c, width) part[c] += g[k * step + c]; })
    EACH(c, width) part[c] = (float)total[c];
    for (int64_t k = 0; k < length; k++) EACH(c, width) out[k * step + c] = g[k * step + c] - exp_(y[k * step + c]) * part[c];
}

KERNEL(log_softmax_grad, {
    float *out; const float *y; const float *g; int64_t outer; int64_t length; int64_t inner;
}) {
    const span s = share(tiles_of(a->outer, a->inner), 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, a->length, a->inner);
        if (a->inner == 1) log_softmax_grad_row(a->out + t.begin, a->y + t.begin, a->g + t.begin, a->length);
        else log_softmax_grad_columns(a->out + t.begin, a->y + t.begin, a->g + t.begin, a->length, a->inner, t.width);
    }
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
    float terms[BLOCK];
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
    const span s = share(tiles_of(1, step), 1, part, parts);
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
        float top[COLUMNS], mass[COLUMNS], weight[COLUMNS], loss[COLUMNS];
        double masses[COLUMNS] = {0}, weights[COLUMNS] = {0}, sum[COLUMNS] = {0};
        column_max(top, x, n, step, width);
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
    const span s = share(tiles_of(1, step), 1, part, parts);
    if (step == 1) {
        const tile row = {.width = n};
        const float *x = widened(a->dx, a->x, type_of(a->types, 2), row, 1, n);
        if (s.begin < s.end) cross_entropy_ids_row(a->losses, a->dx, x, (uint32_t)*a->ids, n, (float)a->factor);
        return;
    }
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile at = tile_at(i, n, step);
        const int64_t width = at.width;
        const int32_t *ids = a->ids + at.begin;
        const float *x = widened(a->dx, a->x, type_of(a->types, 2), at, n, step) + at.begin;
        float *dx = a->dx + at.begin, *losses = a->losses + at.begin;
        float top[COLUMNS], sum[COLUMNS];
        double total[COLUMNS] = {0};
        column_max(top, x, n, step, width);
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
