// Attention over [heads * features, time, batch], the weights of attention alone, and what its gradient begins with.
// contract: a product and a sum may become one operation (ag.h)
#include "attention.h"

enum { PARTIAL = 128 };  // exponentials of a sum

// ---------------------------------------------------------------------------------------------- attention

typedef struct { float *out, *lse; const float *q, *k, *v; int of_out, of_q, of_k, of_v; } attended;

// One query, slowly.
static void attend_plainly(const attended *a, const sizes *s, const group *g, int64_t i) {
    const group kv = shared(s, g);
    float top = -__builtin_inff();
    double mass = 0.0;
#define SCORE(j) score_of(product_of(a->q, a->of_q, a->k, a->of_k, s, g, s->d, i, j), NULL, s, g, i, j)
    for (int64_t j = 0; j < seen_by(s, i); j++) {
        const float x = SCORE(j);
        top = x > top ? x : top;
    }
    if (s->terms && top == -__builtin_inff()) top = 0.0f;
    for (int64_t j = 0; j < seen_by(s, i); j++) mass += weight_of(SCORE(j) - top);
    if (s->terms && mass == 0.0) mass = 1.0;
    for (int64_t f = 0; f < s->dv; f++) {
        double sum = 0.0;
        for (int64_t j = 0; j < seen_by(s, i); j++)
            sum += weight_of(SCORE(j) - top) * kept_at(s, g, i, j) *
                   number_at(a->v, a->of_v, at(s, &kv, s->dv, s->keys, f, j));
        put_at(a->out, a->of_out, at(s, g, s->dv, s->queries, f, i), (float)(sum / mass));
    }
    a->lse[at(s, g, 1, s->queries, 0, i)] = top + (log_((float)mass) + (float)(mass - mass));
}

// Scores to exponentials, whose sums are `mass` and whose largest exponent was `top`.
static void exponentials(float *w, float *top, float *mass, const sizes *s, const block *b) {
    reg low = (reg){0} - __builtin_inff(), high = low;
    for (int64_t j = 0; j < b->keys; j++) {
        float *row = w + j * WIDE;
        if (!s->terms) {
            scale(row, s->factor);
            for (int64_t i = 0; i < blind(s, b, j); i++) row[i] = -__builtin_inff();
        }
        low = larger(get(row), low);
        high = larger(get(row + WIDTH), high);
    }
    put(top, low);
    put(top + WIDTH, high);
    if (s->terms)
        for (int i = 0; i < WIDE; i++) top[i] = top[i] == -__builtin_inff() ? 0.0f : top[i];
    for (int i = 0; i < WIDE; i++) mass[i] = 0.0f;
    for (int64_t first = 0; first < b->keys; first += PARTIAL) {
        float sum[WIDE] = {0.0f};
        for (int64_t j = first; j < least(first + PARTIAL, b->keys); j++) {
            float *row = w + j * WIDE;
            for (int i = 0; i < WIDE; i++) {
                row[i] = weight_of(row[i] - top[i]);
                sum[i] += row[i];
            }
        }
        for (int i = 0; i < WIDE; i++) mass[i] += sum[i];
    }
}

// Some queries of one sample and head, whose matrices are given; the result takes the place of q.
static void attend(float *q, float *lse, const float *k, const float *v, float *w, const sizes *s,
                   span queries, int64_t head, int64_t sample) {
    float top[WIDE], mass[WIDE], *kept = w + s->keys * WIDE;
    for (int64_t query = queries.begin; query < queries.end; query += WIDE) {
        const block b = block_of(s, query, (span){0, s->keys});
        products(w, k, q, s, &b, s->d);
        if (s->terms) ag_score(w, NULL, s, &b, head, sample);
        exponentials(w, top, mass, s, &b);
        if (s->rate > 0) {
            keep(kept, s, &b, head, sample);
            for (int64_t j = 0; j < b.keys * WIDE; j++) w[j] *= kept[j];
        }
        float *to = q + query;
        ag_panel(to, s->line_q, s->dv, b.count, v + b.key, TALL * s->line_k, s->line_k, 1, w, WIDE, b.keys, 0);
        for (int64_t i = 0; i < b.count; i++) {
            if (s->terms && mass[i] == 0.0f) mass[i] = 1.0f;  // nothing is seen
            lse[query + i] = top[i] + (log_(mass[i]) + (mass[i] - mass[i]));  // NaN where mass is
            mass[i] = 1.0f / mass[i];
        }
        for (int64_t f = 0; f < s->dv; f++, to += s->line_q)
            for (int64_t i = 0; i < b.count; i++) to[i] *= mass[i];
    }
}

static void attend_all(const attended *a, sizes s, int64_t part, int64_t parts) {
    const int64_t size_k = size_of(s.d, s.line_k), size_v = size_of(s.dv, s.line_k);
    const int64_t size_q = size_of(s.d > s.dv ? s.d : s.dv, s.line_q);  // the result takes the place of queries
    const int64_t floats = size_q + size_k + size_v + s.line_q, count = together(&s, floats, parts);
    if (!s.batch || !s.queries) return;
    const int64_t groups = (s.batch + count - 1) / count, units = s.heads * groups, blocks = (s.queries + WIDE - 1) / WIDE;
    const int64_t cuts = units < parts / 2 ? least(blocks, (parts + units - 1) / units) : 1;
    float *memory = ag_scratch(count * floats + s.keys * 2 * WIDE);
    const span mine = share(units * cuts, 1, part, parts);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
        const int64_t first = unit / cuts % groups * count;
        group g = {unit / cuts / groups, first, least(count, s.batch - first)};
        const span queries = share(s.queries, WIDE, unit % cuts, cuts);
        if (!memory) {
            for (; g.count > 0; g.sample++, g.count--)
                for (int64_t t = queries.begin; t < queries.end; t++)
                    attend_plainly(a, &s, &g, t);
            continue;
        }
        float *q = memory, *k = q + count * size_q, *v = k + count * size_k;
        float *lse = v + count * size_v, *w = lse + count * s.line_q;
        take(q, size_q, a->q, a->of_q, &s, &g, s.d, s.queries, s.line_q);
        const group kv = shared(&s, &g);
        take(k, size_k, a->k, a->of_k, &s, &kv, s.d, s.keys, s.line_k);
        take(v, size_v, a->v, a->of_v, &s, &kv, s.dv, s.keys, s.line_k);
        for (int64_t i = 0; i < g.count; i++)
            attend(q + i * size_q, lse + i * s.line_q, k + i * size_k, v + i * size_v, w, &s, queries,
                   g.head, first + i);
        give(a->out, a->of_out, q, size_q, &s, &g, s.dv, s.queries, s.line_q, queries);
        give(a->lse, FLOATS, lse, s.line_q, &s, &g, 1, s.queries, s.line_q, queries);
    }
}

#define ATTENDED(a) (attended){(a)->out, (a)->lse, (a)->q, (a)->k, (a)->v, type_of((a)->types, 0), \
                               type_of((a)->types, 2), type_of((a)->types, 3), type_of((a)->types, 4)}

// work: heads * batch * queries * keys
KERNEL(attention, {
    number *out; float *lse; const number *q; const number *k; const number *v; const void *key;
    int64_t heads; int64_t batch; int64_t queries; int64_t keys; int64_t d; int64_t dv; int64_t causal;
    double factor; double rate; int64_t types;
}) {
    attend_all(&ATTENDED(a),
               sizes_of(a->heads, a->batch, a->queries, a->keys, a->d, a->dv, a->causal, a->factor, a->rate, a->key, NULL,
                        1), part, parts);
}

// work: heads * batch * queries * keys
KERNEL(masked_attention, {
    number *out; float *lse; const number *q; const number *k; const number *v; const void *key; const float *bias;
    const float *mask; const int32_t *q_segments; const int32_t *k_segments; const float *slopes;
    int64_t heads; int64_t batch; int64_t queries; int64_t keys; int64_t d; int64_t dv; int64_t group; int64_t terms;
    int64_t before; int64_t after; double factor; double softcap; double rate;
    int64_t types;
}) {
    const terms t = {a->bias, a->mask, a->q_segments, a->k_segments, a->slopes, a->terms, a->before, a->after, a->softcap};
    attend_all(&ATTENDED(a),
               sizes_of(a->heads, a->batch, a->queries, a->keys, a->d, a->dv, 0, a->factor, a->rate, a->key, &t, a->group),
               part, parts);
}

// ---------------------------------------------------------------------------------------------- delta, and weights alone

// work: heads * features * rest
KERNEL(attention_delta, {
    float *delta; const number *y; const number *g; int64_t heads; int64_t features; int64_t rest; int64_t types;
}) {
    enum { SOME = 256 };
    const int64_t blocks = (a->rest + SOME - 1) / SOME;
    const span s = share(a->heads * blocks, 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t head = i / blocks, first = i % blocks * SOME, n = least(SOME, a->rest - first);
        float sum[SOME] = {0.0f}, memory[2][SOME];
        for (int64_t f = 0; f < a->features; f++) {
            const int64_t at = (head * a->features + f) * a->rest + first;
            const float *y = wide(a->y, type_of(a->types, 1), at, n, memory[0]);
            const float *g = wide(a->g, type_of(a->types, 2), at, n, memory[1]);
            for (int64_t j = 0; j < n; j++) sum[j] += y[j] * g[j];
        }
        memcpy(a->delta + head * a->rest + first, sum, (size_t)n * sizeof *sum);
    }
}

// work: batch * queries * keys
KERNEL(attention_weights, {
    float *out; const float *x; int64_t batch; int64_t queries; int64_t keys; double factor; int64_t causal;
}) {
    const float factor = (float)a->factor;
    const span s = share(a->batch * a->queries, 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const float *x = a->x + i * a->keys;
        float *out = a->out + i * a->keys, top = -__builtin_inff();
        const int64_t seen = a->causal ? least(a->keys, i % a->queries + 1) : a->keys;
        for (int64_t j = 0; j < seen; j++) out[j] = factor * x[j];
        float most[LANES];
        for (int l = 0; l < LANES; l++) most[l] = top;
        int64_t j = 0;
        for (; j + LANES <= seen; j += LANES)
            for (int l = 0; l < LANES; l++) most[l] = out[j + l] > most[l] ? out[j + l] : most[l];
        for (; j < seen; j++) top = out[j] > top ? out[j] : top;
        for (int l = 0; l < LANES; l++) top = most[l] > top ? most[l] : top;
        float mass = 0.0f;
        for (int64_t first = 0; first < seen; first += PARTIAL * LANES) {
            const int64_t end = least(first + PARTIAL * LANES, seen);
            vec sum = {0};
            float rest = 0.0f;
            for (j = first; j < end; j++) out[j] = exp_(out[j] - top);
            for (j = first; j + LANES <= end; j += LANES) sum += load(out + j);
            for (; j < end; j++) rest += out[j];
            mass += added(sum) + rest;
        }
        for (j = 0; j < seen; j++) out[j] /= mass;
        for (j = seen; j < a->keys; j++) out[j] = 0.0f / mass;
    }
}
