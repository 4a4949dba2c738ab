// Updates of optimizers in place, and tests of gradients.  The part of an update that ends last, as a word of the state
// counts, moves the counts on, which all parts read.
#include "rows.h"

#define PLACE 64  // elements per word of the second part of `places`

typedef uint32_t __attribute__((may_alias)) word;

// g *= factor
static void scale(float *g, float factor, span s) {
    if (factor != 1.0f) EACH(i, s.end - s.begin) g[s.begin + i] *= factor;
}

// Asks for elements `begin` to `end` of some arrays, which are read side by side: memory is slow to guess that many.
static inline __attribute__((always_inline)) void expect_floats(const float *const *x, int count, int64_t begin, int64_t end) {
    for (int k = 0; k < count; k++) expect(x[k] + begin, (end - begin) * (int64_t)sizeof(float));
}

// What parameters of 16 bits were set to meanwhile.
static inline void begin_block(float *p, const half_word *stored, int64_t n, int type) {
    if (!type) return;
    expect(stored, n * bytes_of(type));
    ag_follow(p, stored, n, type);
}

// ---------------------------------------------------------------------------------------------- Adam

// A finite gradient whose square is infinite becomes the largest one whose square is not.
static inline float with_square(float g) {
    const float size = __builtin_fabsf(g), most = 0x1.fffffep63f;
    return size > most && size < INFINITY_ ? __builtin_copysignf(most, g) : g;
}

typedef struct { double lr, rate1, rate2, eps, weight_decay, beta1, beta2; } adam;

// c + rate (1 - c): 1 - beta^t of the next step t.
static inline double counted(float c, double rate) { return c + rate * (1.0 - c); }

static void advance(float *row, const adam *with) {
    row[0] = (float)counted(row[0], with->rate1);
    row[1] = (float)counted(row[1], with->rate2);
    row[2] += 1.0f;
}

// x + rate (y - x), from the nearer end: a small y has no digits left in y - x.
static inline float moved(float x, float y, float rate, float beta, int near) {
    return near ? x + (y - x) * rate : (x - y) * beta + y;
}

typedef struct { float step, floor, kept, rate1, rate2, beta1, beta2; } adam_numbers;

static inline __attribute__((always_inline)) void adam_elements(
    float *p, float *m, float *v, const float *g, half_word *stored, int type, int64_t n, adam_numbers x, int near1,
    int near2, int decays) {
    for (int64_t b = 0; b < n; b += SOON) {
        const int64_t end = least(b + SOON, n);
        expect_floats((const float *[]){p, m, v, g}, 4, b, end);
        begin_block(p + b, stored + b, end - b, type);
        IVDEP for (int64_t i = b; i < end; i++) {
            const float grad = with_square(g[i]), old = decays ? p[i] * x.kept : p[i];
            const float mean = moved(m[i], grad, x.rate1, x.beta1, near1);
            const float square = moved(v[i], grad * grad, x.rate2, x.beta2, near2);
            m[i] = mean;
            v[i] = square;
            p[i] = old - mean / (__builtin_sqrtf(square) + x.floor) * x.step;
        }
        if (type) ag_to_halves(stored + b, p + b, end - b, type);
    }
}

// A parameter's elements, which have the counts `row`.
static void adam_step(float *p, float *m, float *v, const float *g, half_word *stored, int type, int64_t n,
                      const float *row, const adam *with) {
    const double root = __builtin_sqrt(counted(row[1], with->rate2));
    const adam_numbers x = {
        (float)(with->lr * root / counted(row[0], with->rate1)), (float)(with->eps * root),
        (float)(1.0 - with->lr * with->weight_decay), (float)with->rate1, (float)with->rate2, (float)with->beta1,
        (float)with->beta2};
    const int near1 = x.rate1 <= 0.5f, near2 = x.rate2 <= 0.5f, decays = with->weight_decay != 0.0;
    if (near1 && near2 && decays) adam_elements(p, m, v, g, stored, type, n, x, 1, 1, 1);
    else if (near1 && near2) adam_elements(p, m, v, g, stored, type, n, x, 1, 1, 0);
    else adam_elements(p, m, v, g, stored, type, n, x, near1, near2, decays);
}

KERNEL(adam_update, {
    float *p; float *m; float *v; float *state; const double *settings; const int32_t *places; float *g;
    const float *factor; const float *bad; number *stored; int64_t n; int64_t start; int64_t first; int64_t count;
    int64_t last; int64_t types;
}) {
    const span s = share(a->n, LANES, part, parts);
    scale(a->g, *a->factor, s);
    if (*a->bad != 0.0f) return;
    const double *x = a->settings;
    const adam with = {x[0], x[1], x[2], x[3], x[4], x[5], x[6]};
    const int32_t *ends = a->places + 1, *owners = ends + a->places[0];
    float *rows = a->state + 1;
    const int type = type_of(a->types, 9);
    int64_t slot = s.begin < s.end ? owners[(a->start + s.begin) / PLACE] : 0;
    for (int64_t i = s.begin; i < s.end; slot++) {
        const int64_t n = least(ends[slot] - a->start, s.end) - i;
        if (n <= 0) continue;
        adam_step(a->p + i, a->m + i, a->v + i, a->g + i, (half_word *)a->stored + i, type, n, rows + 3 * (1 + slot), &with);
        i += n;
    }
    word *finished = (word *)a->state;
    if (__atomic_add_fetch(finished, 1, __ATOMIC_ACQ_REL) < parts) return;
    *finished = 0;
    for (int64_t k = 1; k <= a->count; k++) advance(rows + 3 * (a->first + k), &with);
    if (a->last) advance(rows, &with);
}

// ---------------------------------------------------------------------------------------------- SGD

KERNEL(sgd_update, {
    float *p; float *momentum; float *state; const double *settings; float *g; const float *factor; const float *bad;
    number *stored; int64_t n; int64_t last; int64_t types;
}) {
    const span s = share(a->n, LANES, part, parts);
    scale(a->g, *a->factor, s);
    if (*a->bad != 0.0f) return;
    const float lr = (float)a->settings[0], mu = (float)a->settings[1], weight_decay = (float)a->settings[2];
    const int decays = a->settings[2] != 0.0, keeps = a->settings[1] != 0.0, nesterov = a->settings[3] != 0.0;
    float *p = a->p, *momentum = a->momentum;
    const float *g = a->g;
    if (part == 0 && a->last) a->state[1] += 1.0f;  // nobody reads it here
    const int type = type_of(a->types, 7);
    half_word *stored = (half_word *)a->stored;
    for (int64_t first = s.begin; first < s.end; first += SOON) {
        const int64_t end = least(first + SOON, s.end);
        expect_floats((const float *[]){p, g, momentum}, keeps ? 3 : 2, first, end);
        begin_block(p + first, stored + first, end - first, type);
        IVDEP for (int64_t i = first; i < end; i++) {
            float d = decays ? g[i] + weight_decay * p[i] : g[i];
            if (keeps) {
                const float b = momentum[i] * mu + d;
                momentum[i] = b;
                d = nesterov ? d + mu * b : b;
            }
            p[i] -= lr * d;
        }
        if (type) ag_to_halves(stored + first, p + first, end - first, type);
    }
}

// ---------------------------------------------------------------------------------------------- pieces of gradients

KERNEL(nonfinite, { float *out; const float *x; const float *factor; int64_t n; int64_t pieces; int64_t chunk; }) {
    const span s = share(a->pieces, 1, part, parts);
    const float factor = *a->factor;
    for (int64_t k = s.begin; k < s.end; k++) {
        int64_t count = 0;
        for (int64_t b = k * a->chunk; b < least((k + 1) * a->chunk, a->n); b += BLOCK) {
            const int64_t m = least(BLOCK, least((k + 1) * a->chunk, a->n) - b);
            int32_t wrong = 0;
            for (int64_t i = 0; i < m; i++) {
                const float scaled = a->x[b + i] * factor;
                wrong += !(__builtin_fabsf(scaled) < INFINITY_);
            }
            count += wrong;
        }
        a->out[k] = (float)count;
    }
}

// Of x, and of x 2^-80, whose squares do not overflow.
KERNEL(square_sums, { float *near; float *far; const float *x; int64_t n; int64_t pieces; int64_t chunk; }) {
    const span s = share(a->pieces, 1, part, parts);
    for (int64_t k = s.begin; k < s.end; k++) {
        const int64_t end = least((k + 1) * a->chunk, a->n);
        ALIGNED float squares[BLOCK];
        double total = 0.0, scaled = 0.0;
        for (int64_t b = k * a->chunk; b < end; b += BLOCK) {
            const int64_t m = least(BLOCK, end - b);
            EACH(i, m) squares[i] = a->x[b + i] * a->x[b + i];
            total += block_sum(squares, m);
            EACH(i, m) squares[i] = (a->x[b + i] * 0x1p-80f) * (a->x[b + i] * 0x1p-80f);
            scaled += block_sum(squares, m);
        }
        a->near[k] = (float)total;
        a->far[k] = (float)scaled;
    }
}

// ---------------------------------------------------------------------------------------------- a few numbers

// work: 1
KERNEL(scale_update, { float *scaling; const float *bad; int64_t interval; double largest; }) {
    float *x = a->scaling;
    double scale = x[0], good = x[2];
    if (part) return;
    if (*a->bad > 0.0f) {
        scale = scale * 0.5 > 1.0 / a->largest ? scale * 0.5 : 1.0 / a->largest;
        good = 0.0;
        x[3] += 1.0f;
    } else if (good + 1.0 < (double)a->interval) {
        good += 1.0;
    } else {
        scale = scale * 2.0 < a->largest ? scale * 2.0 : a->largest;
        good = 0.0;
    }
    x[0] = (float)scale;
    x[1] = (float)(1.0 / scale);
    x[2] = (float)good;
    (void)parts;
}

KERNEL(clip_factor, { float *factor; float *norm; const float *near; const float *far; int64_t n; double max_norm; }) {
    const span s = share(a->n, LANES, part, parts);
    const float most = (float)a->max_norm;
    for (int64_t i = s.begin; i < s.end; i++) {
        const int close = a->near[i] < INFINITY_;
        const float root = __builtin_sqrtf(close ? a->near[i] : a->far[i]), unit = close ? 1.0f : 0x1p80f;
        const float norm = unit * root, quotient = most / unit / root;
        a->norm[i] = norm;
        a->factor[i] = !(root < INFINITY_ && norm > most) ? 1.0f : quotient < 0x1p-126f ? __builtin_nanf("") : quotient;
    }
}
