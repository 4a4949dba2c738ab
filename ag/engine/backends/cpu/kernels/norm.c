// Layer norm, RMS norm and batch norm over a matrix x[features, samples]: h = rate (x - mean), rate = 1 / sqrt(variance +
// eps).  RMS norm has no mean, for which shared functions take NULL, and the mean of the squares for the variance.
#include "rows.h"

#define SHARED static inline __attribute__((always_inline))
#define GROUP 64  // rows that share the rates of a block of columns

// NaN where the variance overflowed, so that no norm is 0 in silence.
static inline float rate_of(float variance, float eps) {
    const float rate = 1.0f / __builtin_sqrtf(variance + eps);
    return rate > 0.0f ? rate : __builtin_nanf("");
}

KERNEL(inverse_std, { float *out; const float *variance; int64_t n; double eps; }) {
    const span s = share(a->n, LANES, part, parts);
    const float eps = (float)a->eps;
    IVDEP for (int64_t i = s.begin; i < s.end; i++) a->out[i] = rate_of(a->variance[i], eps);
}

// From the nearer end, as a small value has no digits left in value - running; not where the batch overflowed.
KERNEL(running_update, {
    float *running; const float *value; const float *variance; int64_t n; double momentum; double factor;
}) {
    const span s = share(a->n, LANES, part, parts);
    const float momentum = (float)a->momentum, kept = (float)(1.0 - a->momentum), factor = (float)a->factor;
    const int near = a->momentum <= 0.5;
    float *x = a->running;
    const float *value = a->value, *variance = a->variance;
    IVDEP for (int64_t i = s.begin; i < s.end; i++) {
        const float goal = factor * value[i];
        const float moved = near ? x[i] + momentum * (goal - x[i]) : (x[i] - goal) * kept + goal;
        x[i] = __builtin_fabsf(goal) < INFINITY_ && variance[i] < INFINITY_ ? moved : x[i];
    }
}

// ---------------------------------------------------------------------------------------------- layer and RMS norm

// The mean of (x - middle)^2 over n elements in one piece.
SHARED float row_spread(const float *x, int type, float middle, int64_t n) {
    ALIGNED float terms[BLOCK], block[BLOCK];
    double total = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *row = wide(x, type, b, m, block);
        EACH(i, m) terms[i] = (row[i] - middle) * (row[i] - middle);
        total += block_sum(terms, m);
    }
    return (float)(total / (double)n);
}

typedef struct { int out, x, gamma, beta; } norm_types;

// One sample, whose features lie in one piece.
SHARED void norm_row(float *out, float *mean, float *variance, const float *x, const float *gamma, const float *beta,
                     norm_types t, int64_t n, float eps) {
    const float middle = mean ? (float)(row_sum(x, t.x, n) / (double)n) : 0.0f;
    const float spread = row_spread(x, t.x, middle, n), rate = rate_of(spread, eps);
    ALIGNED float memory[4][BLOCK];
    if (mean) *mean = middle;
    *variance = spread;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *row = wide(x, t.x, b, m, memory[0]), *factor = wide(gamma, t.gamma, b, m, memory[1]);
        const float *offset = mean ? wide(beta, t.beta, b, m, memory[2]) : NULL;
        float *made = room(out, t.out, b, memory[3]);
        if (mean) EACH(i, m) made[i] = (row[i] - middle) * rate * factor[i] + offset[i];
        else EACH(i, m) made[i] = row[i] * rate * factor[i];
        kept(out, t.out, b, m, made);
    }
}

// All samples.
SHARED void norm_by_features(float *out, float *mean, float *variance, const float *x, const float *gamma,
                             const float *beta, norm_types types, int64_t n, int64_t step, float eps, int64_t part,
                             int64_t parts) {
    const span s = share(tiles_of(1, n, step), 1, part, parts);
    if (step == 1 && s.begin < s.end) norm_row(out, mean, variance, x, gamma, beta, types, n, eps);
    if (step == 1) return;
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, n, step);
        const int64_t width = t.width;
        const piece own = in_one_piece(x, types.x, t.begin, n, step, width);
        ALIGNED float middle[COLUMNS] = {0}, rate[COLUMNS], memory[2][COLUMNS];
        ALIGNED double total[COLUMNS] = {0}, squares[COLUMNS] = {0};
        if (mean) {
            DOWN(0, n, width, middle, total, {
                const float *row = wide(own.x, own.type, k * own.step, width, memory[0]);
                EACH(c, width) middle[c] += row[c];
            })
            EACH(c, width) mean[t.column + c] = middle[c] = (float)(total[c] / (double)n);
        }
        DOWN(0, n, width, rate, squares, {
            const float *row = wide(own.x, own.type, k * own.step, width, memory[0]);
            EACH(c, width) {
                const float h = mean ? row[c] - middle[c] : row[c];
                rate[c] += h * h;
            }
        })
        EACH(c, width) {
            const float spread = (float)(squares[c] / (double)n);
            variance[t.column + c] = spread;
            rate[c] = rate_of(spread, eps);
        }
        for (int64_t k = 0; k < n; k++) {
            const float factor = number_at(gamma, types.gamma, k), offset = mean ? number_at(beta, types.beta, k) : 0.0f;
            const float *row = wide(own.x, own.type, k * own.step, width, memory[0]);
            float *to = room(out, types.out, t.begin + k * step, memory[1]);
            if (mean) EACH(c, width) to[c] = (row[c] - middle[c]) * rate[c] * factor + offset;
            else EACH(c, width) to[c] = row[c] * rate[c] * factor;
            kept(out, types.out, t.begin + k * step, width, to);
        }
    }
}

KERNEL(layer_norm, {
    number *out; float *mean; float *variance; const number *x; const number *gamma; const number *beta; int64_t features;
    int64_t samples; double eps; int64_t types;
}) {
    const norm_types t = {type_of(a->types, 0), type_of(a->types, 3), type_of(a->types, 4), type_of(a->types, 5)};
    norm_by_features(a->out, a->mean, a->variance, a->x, a->gamma, a->beta, t, a->features, a->samples, (float)a->eps, part,
                     parts);
}

KERNEL(rms_norm, {
    number *out; float *square; const number *x; const number *gamma; int64_t features; int64_t samples; double eps;
    int64_t types;
}) {
    const norm_types t = {type_of(a->types, 0), type_of(a->types, 2), type_of(a->types, 3), 0};
    norm_by_features(a->out, NULL, a->square, a->x, a->gamma, NULL, t, a->features, a->samples, (float)a->eps, part, parts);
}

// rate (s - mean(s) - h mean(s h)) with s = gamma g: what mean and variance send back is in it.
typedef struct { int dx, x, g, gamma; } grad_types;

SHARED void grad_by_features_row(float *dx, const float *x, const float *g, const float *gamma, grad_types t,
                                 const float *mean, float rate, int64_t n) {
    const float centre = mean ? *mean : 0.0f;
    ALIGNED float terms[2][BLOCK], memory[4][BLOCK];
    double sum = 0.0, dot = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *row = wide(x, t.x, b, m, memory[0]), *slope = wide(g, t.g, b, m, memory[1]);
        const float *factor = wide(gamma, t.gamma, b, m, memory[2]);
        EACH(i, m) {
            const float s = slope[i] * factor[i];
            terms[0][i] = s;
            terms[1][i] = s * (row[i] - centre);
        }
        if (mean) sum += block_sum(terms[0], m);
        dot += block_sum(terms[1], m);
    }
    const float middle = (float)(sum / (double)n), along = (float)(dot / (double)n) * rate * rate;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        const float *row = wide(x, t.x, b, m, memory[0]), *slope = wide(g, t.g, b, m, memory[1]);
        const float *factor = wide(gamma, t.gamma, b, m, memory[2]);
        float *to = room(dx, t.dx, b, memory[3]);
        if (mean) EACH(i, m) to[i] = (slope[i] * factor[i] - middle - (row[i] - centre) * along) * rate;
        else EACH(i, m) to[i] = (slope[i] * factor[i] - row[i] * along) * rate;
        kept(dx, t.dx, b, m, to);
    }
}

SHARED void grad_by_features(float *dx, const float *x, const float *g, const float *gamma, grad_types types,
                             const float *mean, const float *variance, int64_t n, int64_t step, float eps, int64_t part,
                             int64_t parts) {
    const span s = share(tiles_of(1, n, step), 1, part, parts);
    if (step == 1) {
        if (s.begin < s.end) grad_by_features_row(dx, x, g, gamma, types, mean, rate_of(*variance, eps), n);
        return;
    }
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, n, step);
        const int64_t width = t.width;
        const float *middle = mean ? mean + t.column : NULL;
        ALIGNED float sum[COLUMNS], dot[COLUMNS], rate[COLUMNS], memory[3][COLUMNS];
        ALIGNED double sums[COLUMNS] = {0}, dots[COLUMNS] = {0};
        for (int64_t begin = 0; begin < n; begin += STRIDE) {
            EACH(c, width) sum[c] = dot[c] = 0.0f;
            for (int64_t k = begin; k < least(begin + STRIDE, n); k++) {
                const float factor = number_at(gamma, types.gamma, k);
                const float *row = wide(x, types.x, t.begin + k * step, width, memory[0]);
                const float *slope = wide(g, types.g, t.begin + k * step, width, memory[1]);
                EACH(c, width) {
                    const float along = slope[c] * factor;
                    if (mean) sum[c] += along;
                    dot[c] += along * (mean ? row[c] - middle[c] : row[c]);
                }
            }
            EACH(c, width) {
                if (mean) sums[c] += sum[c];
                dots[c] += dot[c];
            }
        }
        EACH(c, width) {
            rate[c] = rate_of(variance[t.column + c], eps);
            if (mean) sum[c] = (float)(sums[c] / (double)n);
            dot[c] = (float)(dots[c] / (double)n) * rate[c] * rate[c];
        }
        for (int64_t k = 0; k < n; k++) {
            const float factor = number_at(gamma, types.gamma, k);
            const float *row = wide(x, types.x, t.begin + k * step, width, memory[0]);
            const float *slope = wide(g, types.g, t.begin + k * step, width, memory[1]);
            float *to = room(dx, types.dx, t.begin + k * step, memory[2]);
            if (mean) EACH(c, width) to[c] = (slope[c] * factor - sum[c] - (row[c] - middle[c]) * dot[c]) * rate[c];
            else EACH(c, width) to[c] = (slope[c] * factor - row[c] * dot[c]) * rate[c];
            kept(dx, types.dx, t.begin + k * step, width, to);
        }
    }
}

KERNEL(layer_norm_grad, {
    number *dx; const number *x; const number *g; const number *gamma; const float *mean; const float *variance;
    int64_t features; int64_t samples; double eps; int64_t types;
}) {
    const grad_types t = {type_of(a->types, 0), type_of(a->types, 1), type_of(a->types, 2), type_of(a->types, 3)};
    grad_by_features(a->dx, a->x, a->g, a->gamma, t, a->mean, a->variance, a->features, a->samples, (float)a->eps, part,
                     parts);
}

KERNEL(rms_norm_grad, {
    number *dx; const number *x; const number *g; const number *gamma; const float *square; int64_t features;
    int64_t samples; double eps; int64_t types;
}) {
    const grad_types t = {type_of(a->types, 0), type_of(a->types, 1), type_of(a->types, 2), type_of(a->types, 3)};
    grad_by_features(a->dx, a->x, a->g, a->gamma, t, NULL, a->square, a->features, a->samples, (float)a->eps, part, parts);
}

// ---------------------------------------------------------------------------------------------- sums along rows

// Per row and piece, the sums of g h and of g; statistics of rows, or of columns, whose rates rows share.
typedef struct {
    float *dgamma, *dbeta;
    const float *x, *g, *mean, *variance;
    int64_t rows, length, pieces, row_step, column_step, chunk;
    float eps;
    int of_x, of_g;
} sums_of;

SHARED void sums_along_rows(const sums_of *a, int centred, int column_step, int64_t part, int64_t parts) {
    const span s = share(a->rows * a->pieces, 1, part, parts);
    for (int64_t i = s.begin; i < s.end;) {
        const int64_t piece = i / a->rows, row = i % a->rows, rows = least(GROUP, least(a->rows - row, s.end - i));
        const int64_t end = least((piece + 1) * a->chunk, a->length);
        double along[GROUP] = {0}, plain[GROUP] = {0};
        for (int64_t b = piece * a->chunk; b < end; b += BLOCK) {
            const int64_t m = least(BLOCK, end - b);
            ALIGNED float rate[BLOCK], terms[BLOCK], memory[2][BLOCK];
            if (column_step) EACH(c, m) rate[c] = rate_of(a->variance[b + c], a->eps);
            for (int64_t k = 0; k < rows; k++) {
                const float *x = wide(a->x, a->of_x, (row + k) * a->length + b, m, memory[0]);
                const float *g = wide(a->g, a->of_g, (row + k) * a->length + b, m, memory[1]);
                const float *mean = centred ? a->mean + (row + k) * a->row_step + b * column_step : NULL;
                if (!centred) EACH(c, m) terms[c] = x[c] * rate[c] * g[c];
                else if (column_step) EACH(c, m) terms[c] = (x[c] - mean[c]) * rate[c] * g[c];
                else EACH(c, m) terms[c] = (x[c] - *mean) * g[c];
                along[k] += block_sum(terms, m);
                if (centred) plain[k] += block_sum(g, m);
            }
        }
        for (int64_t k = 0; k < rows; k++) {
            const int64_t at = (row + k) * a->pieces + piece;
            const int own = !column_step && a->length;  // of no columns there may be no statistics
            const float rate = own ? rate_of(a->variance[(row + k) * a->row_step], a->eps) : 1.0f;
            a->dgamma[at] = (float)along[k] * rate;
            if (centred) a->dbeta[at] = (float)plain[k];
        }
        i += rows;
    }
}

KERNEL(norm_sums, {
    float *dgamma; float *dbeta; const number *x; const number *g; const float *mean; const float *variance; int64_t rows;
    int64_t length; int64_t pieces; int64_t row_step; int64_t column_step; double eps; int64_t chunk;
    int64_t types;
}) {
    const sums_of given = {a->dgamma, a->dbeta, a->x, a->g, a->mean, a->variance, a->rows, a->length, a->pieces, a->row_step,
                           a->column_step, a->chunk, (float)a->eps, type_of(a->types, 2), type_of(a->types, 3)};
    if (a->column_step) sums_along_rows(&given, 1, 1, part, parts);
    else sums_along_rows(&given, 1, 0, part, parts);
}

// Of the columns' mean squares.
KERNEL(rms_norm_sums, {
    float *dgamma; const number *x; const number *g; const float *square; int64_t rows; int64_t length; int64_t pieces;
    double eps; int64_t chunk; int64_t types;
}) {
    const sums_of given = {a->dgamma, NULL, a->x, a->g, NULL, a->square, a->rows, a->length, a->pieces, 0, 1, a->chunk,
                           (float)a->eps, type_of(a->types, 1), type_of(a->types, 2)};
    sums_along_rows(&given, 0, 1, part, parts);
}

KERNEL(norm_statistics, {
    float *mean; float *variance; const number *x; int64_t rows; int64_t length; int64_t pieces; int64_t chunk;
    int64_t types;
}) {
    const int type = type_of(a->types, 2);
    const span s = share(a->rows * a->pieces, 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t first = i % a->pieces * a->chunk, n = least(a->chunk, a->length - first);
        const float *x = from_at(a->x, type, i / a->pieces * a->length + first);
        const float mean = (float)(row_sum(x, type, n) / (double)n);
        a->mean[i] = mean;
        a->variance[i] = row_spread(x, type, mean, n);
    }
}

// Of whole rows, given those of their pieces.
KERNEL(joined_statistics, {
    float *mean; float *variance; const float *means; const float *variances; int64_t rows; int64_t pieces; int64_t length;
    int64_t chunk;
}) {
    const span s = share(a->rows, LANES, part, parts);
    for (int64_t r = s.begin; r < s.end; r++) {
        const float *means = a->means + r * a->pieces, *variances = a->variances + r * a->pieces;
        double mean = 0.0, variance = 0.0;
        for (int64_t k = 0; k < a->pieces; k++)
            mean += means[k] * (double)least(a->chunk, a->length - a->chunk * k) / (double)a->length;
        for (int64_t k = 0; k < a->pieces; k++)
            variance += (variances[k] + (means[k] - mean) * (means[k] - mean)) *
                        (double)least(a->chunk, a->length - a->chunk * k) / (double)a->length;
        a->mean[r] = (float)mean;
        a->variance[r] = (float)variance;
    }
}

// ---------------------------------------------------------------------------------------------- batch norm

KERNEL(normalize, {
    number *out; const number *x; const number *gamma; const number *beta; const float *mean; const float *variance;
    int64_t n; int64_t length; double eps; int64_t types;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    const int type = type_of(a->types, 0), of_x = type_of(a->types, 1);
    for (int64_t i = s.begin; i < s.end;) {
        const int64_t r = i / a->length, m = least(BLOCK, least((r + 1) * a->length, s.end) - i);
        const float mean = a->mean[r], beta = number_at(a->beta, type_of(a->types, 3), r);
        const float factor = rate_of(a->variance[r], (float)a->eps) * number_at(a->gamma, type_of(a->types, 2), r);
        ALIGNED float memory[2][BLOCK];
        float *out = room(a->out, type, i, memory[0]);
        const float *x = wide(a->x, of_x, i, m, memory[1]);
        EACH(c, m) out[c] = (x[c] - mean) * factor + beta;
        kept(a->out, type, i, m, out);
        i += m;
    }
}

// gamma rate (g - dbeta / length - h dgamma / length)
KERNEL(batch_norm_grad, {
    number *dx; const number *x; const number *g; const number *gamma; const float *mean; const float *variance;
    const float *dgamma; const float *dbeta; int64_t n; int64_t length; double eps; int64_t types;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    const int type = type_of(a->types, 0), of_x = type_of(a->types, 1), of_g = type_of(a->types, 2);
    const float share_of = (float)(1.0 / (double)a->length);
    for (int64_t i = s.begin; i < s.end;) {
        const int64_t r = i / a->length, m = least(BLOCK, least((r + 1) * a->length, s.end) - i);
        const float mean = a->mean[r], rate = rate_of(a->variance[r], (float)a->eps);
        const float factor = number_at(a->gamma, type_of(a->types, 3), r) * rate;
        const float along = rate * a->dgamma[r] * share_of, plain = a->dbeta[r] * share_of;
        ALIGNED float memory[3][BLOCK];
        float *dx = room(a->dx, type, i, memory[0]);
        const float *x = wide(a->x, of_x, i, m, memory[1]), *g = wide(a->g, of_g, i, m, memory[2]);
        EACH(c, m) dx[c] = (g[c] - (x[c] - mean) * along - plain) * factor;
        kept(a->dx, type, i, m, dx);
        i += m;
    }
}
