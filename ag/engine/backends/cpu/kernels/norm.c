// Layer norm and batch norm over a matrix x[features, samples]: h = rate (x - mean) with rate = 1 / sqrt(variance + eps).
#include "rows.h"

#define GROUP 64  // rows that share the rates of a block of columns

static inline float rate_of(float variance, float eps) { return 1.0f / __builtin_sqrtf(variance + eps); }

KERNEL(inverse_std, { float *out; const float *variance; int64_t n; double eps; }) {
    const span s = share(a->n, LANES, part, parts);
    const float eps = (float)a->eps;
    IVDEP for (int64_t i = s.begin; i < s.end; i++) a->out[i] = rate_of(a->variance[i], eps);
}

// Moves towards factor * value, from the nearer end: a small value has no digits left in value - running.
KERNEL(running_update, { float *running; const float *value; int64_t n; double momentum; double factor; }) {
    const span s = share(a->n, LANES, part, parts);
    const float momentum = (float)a->momentum, kept = (float)(1.0 - a->momentum), factor = (float)a->factor;
    const int near = a->momentum <= 0.5;
    float *x = a->running;
    const float *value = a->value;
    IVDEP for (int64_t i = s.begin; i < s.end; i++) {
        const float goal = factor * value[i];
        x[i] = near ? x[i] + momentum * (goal - x[i]) : (x[i] - goal) * kept + goal;
    }
}

// ---------------------------------------------------------------------------------------------- layer norm

// One sample: its features lie in one piece.
static void layer_norm_row(float *out, float *mean, float *variance, const float *x, const float *gamma, const float *beta,
                           int64_t n, float eps) {
    float terms[BLOCK];
    const float middle = (float)(row_sum(x, n) / (double)n);
    double total = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        EACH(i, m) terms[i] = (x[b + i] - middle) * (x[b + i] - middle);
        total += block_sum(terms, m);
    }
    const float spread = (float)(total / (double)n), rate = rate_of(spread, eps);
    *mean = middle;
    *variance = spread;
    EACH(i, n) out[i] = (x[i] - middle) * rate * gamma[i] + beta[i];
}

KERNEL(layer_norm, {
    float *out; float *mean; float *variance; const float *x; const float *gamma; const float *beta; int64_t features;
    int64_t samples; double eps;
}) {
    const int64_t n = a->features, step = a->samples;
    const float eps = (float)a->eps;
    const span s = share(tiles_of(1, step), 1, part, parts);
    if (step == 1) {
        if (s.begin < s.end) layer_norm_row(a->out, a->mean, a->variance, a->x, a->gamma, a->beta, n, eps);
        return;
    }
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, n, step);
        const int64_t width = t.width;
        const float *x = a->x + t.begin;
        float *out = a->out + t.begin, mean[COLUMNS], rate[COLUMNS];
        double total[COLUMNS] = {0}, squares[COLUMNS] = {0};
        DOWN(0, n, width, mean, total, { EACH(c, width) mean[c] += x[k * step + c]; })
        EACH(c, width) mean[c] = (float)(total[c] / (double)n);
        DOWN(0, n, width, rate, squares, {
            EACH(c, width) {
                const float h = x[k * step + c] - mean[c];
                rate[c] += h * h;
            }
        })
        EACH(c, width) {
            const float variance = (float)(squares[c] / (double)n);
            a->mean[t.column + c] = mean[c];
            a->variance[t.column + c] = variance;
            rate[c] = rate_of(variance, eps);
        }
        for (int64_t k = 0; k < n; k++) {
            const float gamma = a->gamma[k], beta = a->beta[k];
            EACH(c, width) out[k * step + c] = (x[k * step + c] - mean[c]) * rate[c] * gamma + beta;
        }
    }
}

// rate (s - mean(s) - h mean(s h)) with s = gamma g: what mean and variance send back is in it.
static void layer_norm_grad_row(float *dx, const float *x, const float *g, const float *gamma, float mean, float rate,
                                int64_t n) {
    float terms[2][BLOCK];
    double sum = 0.0, dot = 0.0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        const int64_t m = least(BLOCK, n - b);
        EACH(i, m) {
            const float s = g[b + i] * gamma[b + i];
            terms[0][i] = s;
            terms[1][i] = s * (x[b + i] - mean);
        }
        sum += block_sum(terms[0], m);
        dot += block_sum(terms[1], m);
    }
    const float middle = (float)(sum / (double)n), along = (float)(dot / (double)n) * rate * rate;
    EACH(i, n) dx[i] = (g[i] * gamma[i] - middle - (x[i] - mean) * along) * rate;
}

KERNEL(layer_norm_grad, {
    float *dx; const float *x; const float *g; const float *gamma; const float *mean; const float *variance;
    int64_t features; int64_t samples; double eps;
}) {
    const int64_t n = a->features, step = a->samples;
    const float eps = (float)a->eps;
    const span s = share(tiles_of(1, step), 1, part, parts);
    if (step == 1) {
        if (s.begin < s.end)
            layer_norm_grad_row(a->dx, a->x, a->g, a->gamma, *a->mean, rate_of(*a->variance, eps), n);
        return;
    }
    for (int64_t i = s.begin; i < s.end; i++) {
        const tile t = tile_at(i, n, step);
        const int64_t width = t.width;
        const float *x = a->x + t.begin, *g = a->g + t.begin, *mean = a->mean + t.column;
        float *dx = a->dx + t.begin, sum[COLUMNS], dot[COLUMNS], rate[COLUMNS];
        double sums[COLUMNS] = {0}, dots[COLUMNS] = {0};
        for (int64_t begin = 0; begin < n; begin += STRIDE) {
            EACH(c, width) sum[c] = dot[c] = 0.0f;
            for (int64_t k = begin; k < least(begin + STRIDE, n); k++) {
                const float gamma = a->gamma[k];
                EACH(c, width) {
                    const float along = g[k * step + c] * gamma;
                    sum[c] += along;
                    dot[c] += along * (x[k * step + c] - mean[c]);
                }
            }
            EACH(c, width) {
                sums[c] += sum[c];
                dots[c] += dot[c];
            }
        }
        EACH(c, width) {
            rate[c] = rate_of(a->variance[t.column + c], eps);
            sum[c] = (float)(sums[c] / (double)n);
            dot[c] = (float)(dots[c] / (double)n) * rate[c] * rate[c];
        }
        for (int64_t k = 0; k < n; k++) {
            const float gamma = a->gamma[k];
            EACH(c, width)
                dx[k * step + c] = (g[k * step + c] * gamma - sum[c] - (x[k * step + c] - mean[c]) * dot[c]) * rate[c];
        }
    }
}

// ---------------------------------------------------------------------------------------------- sums along rows

// Per row and piece, the sums of g h and of g; statistics of rows, or of columns, whose rates rows share.
KERNEL(norm_sums, {
    float *dgamma; float *dbeta; const float *x; const float *g; const float *mean; const float *variance; int64_t rows;
    int64_t length; int64_t pieces; int64_t row_step; int64_t column_step; double eps; int64_t chunk;
}) {
    const float eps = (float)a->eps;
    const span s = share(a->rows * a->pieces, 1, part, parts);
    for (int64_t i = s.begin; i < s.end;) {
        const int64_t piece = i / a->rows, row = i % a->rows, rows = least(GROUP, least(a->rows - row, s.end - i));
        const int64_t end = least((piece + 1) * a->chunk, a->length);
        double along[GROUP] = {0}, plain[GROUP] = {0};
        for (int64_t b = piece * a->chunk; b < end; b += BLOCK) {
            const int64_t m = least(BLOCK, end - b);
            float rate[BLOCK], terms[BLOCK];
            if (a->column_step) EACH(c, m) rate[c] = rate_of(a->variance[b + c], eps);
            for (int64_t k = 0; k < rows; k++) {
                const float *x = a->x + (row + k) * a->length + b, *g = a->g + (row + k) * a->length + b;
                const float *mean = a->mean + (row + k) * a->row_step + b * a->column_step;
                if (a->column_step) EACH(c, m) terms[c] = (x[c] - mean[c]) * rate[c] * g[c];
                else EACH(c, m) terms[c] = (x[c] - *mean) * g[c];
                along[k] += block_sum(terms, m);
                plain[k] += block_sum(g, m);
            }
        }
        for (int64_t k = 0; k < rows; k++) {
            const int64_t at = (row + k) * a->pieces + piece;
            const int own = !a->column_step && a->length;  // of no columns there may be no statistics
            const float rate = own ? rate_of(a->variance[(row + k) * a->row_step], eps) : 1.0f;
            a->dgamma[at] = (float)along[k] * rate;
            a->dbeta[at] = (float)plain[k];
        }
        i += rows;
    }
}

KERNEL(norm_statistics, {
    float *mean; float *variance; const float *x; int64_t rows; int64_t length; int64_t pieces; int64_t chunk;
}) {
    const span s = share(a->rows * a->pieces, 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t first = i % a->pieces * a->chunk, n = least(a->chunk, a->length - first);
        const float *x = a->x + i / a->pieces * a->length + first;
        const float mean = (float)(row_sum(x, n) / (double)n);
        float terms[BLOCK];
        double total = 0.0;
        for (int64_t b = 0; b < n; b += BLOCK) {
            const int64_t m = least(BLOCK, n - b);
            EACH(c, m) terms[c] = (x[b + c] - mean) * (x[b + c] - mean);
            total += block_sum(terms, m);
        }
        a->mean[i] = mean;
        a->variance[i] = (float)(total / (double)n);
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
    float *out; const float *x; const float *gamma; const float *beta; const float *mean; const float *variance; int64_t n;
    int64_t length; double eps;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    for (int64_t i = s.begin; i < s.end;) {
        const int64_t r = i / a->length, m = least((r + 1) * a->length, s.end) - i;
        const float mean = a->mean[r], factor = rate_of(a->variance[r], (float)a->eps) * a->gamma[r], beta = a->beta[r];
        const float *x = a->x + i;
        float *out = a->out + i;
        EACH(c, m) out[c] = (x[c] - mean) * factor + beta;
        i += m;
    }
}

// gamma rate (g - dbeta / length - h dgamma / length)
KERNEL(batch_norm_grad, {
    float *dx; const float *x; const float *g; const float *gamma; const float *mean; const float *variance;
    const float *dgamma; const float *dbeta; int64_t n; int64_t length; double eps;
}) {
    const span s = share(a->n, BLOCK, part, parts);
    const float share_of = (float)(1.0 / (double)a->length);
    for (int64_t i = s.begin; i < s.end;) {
        const int64_t r = i / a->length, m = least((r + 1) * a->length, s.end) - i;
        const float mean = a->mean[r], rate = rate_of(a->variance[r], (float)a->eps), factor = a->gamma[r] * rate;
        const float along = rate * a->dgamma[r] * share_of, plain = a->dbeta[r] * share_of;
        const float *x = a->x + i, *g = a->g + i;
        float *dx = a->dx + i;
        EACH(c, m) dx[c] = (g[c] - (x[c] - mean) * along - plain) * factor;
        i += m;
    }
}
