// The gradients of attention: with weights w made again, dv = g w^T; with the slopes s = w (v^T g - delta) of the scores,
// dq = k s and dk = q s^T, times the scores' factor.
// contract: a product and a sum may become one operation (ag.h)
#include "attention.h"

typedef struct {
    float *q, *k, *v, *g, *lse, *delta;  // matrices of a sample; gradients take the place of q, k and v
    int64_t head, sample;
} operands;

// Memory for one sample: weights, slopes and what is kept, by keys and WIDE queries; then matrices [time, features].
typedef struct { float *w, *s, *kept, *q, *g, *dk, *dv; } places;

static int64_t extra(const sizes *s) {
    return 3 * s->keys * WIDE + (s->queries + s->keys) * (up(s->d, WIDTH) + up(s->dv, WIDTH));
}

static places places_in(float *memory, const sizes *s) {
    const int64_t scores = s->keys * WIDE, line = up(s->d, WIDTH), line_v = up(s->dv, WIDTH);
    float *q = memory + 3 * scores, *g = q + s->queries * line, *dk = g + s->queries * line_v;
    return (places){memory, memory + scores, memory + 2 * scores, q, g, dk, dk + s->keys * line};
}

// Weights and slopes of a block from the products of k and q, and of v and g.
static void slopes(const places *p, const sizes *s, const block *b, const operands *o) {
    const float *lse = o->lse + b->query, *delta = o->delta + b->query;
    if (s->rate > 0) keep(p->kept, s, b, o->head, o->sample);
    for (int64_t j = 0; j < b->keys; j++) {
        float *w = p->w + j * WIDE, *slope = p->s + j * WIDE;
        const float *kept = p->kept + j * WIDE;
        for (int i = 0; i < WIDE; i++) w[i] = exp_(s->factor * w[i] - lse[i]);
        if (s->rate > 0) {
            for (int i = 0; i < WIDE; i++) {
                slope[i] = s->factor * w[i] * (slope[i] * kept[i] - delta[i]);
                w[i] *= kept[i];
            }
        } else {
            for (int i = 0; i < WIDE; i++) slope[i] = s->factor * w[i] * (slope[i] - delta[i]);
        }
        for (int64_t i = 0; i < blind(s, b, j); i++) w[i] = slope[i] = 0.0f;
    }
}

// sum[keys, features] += scores[keys, queries] x[queries, features].
static void add_product(float *sum, const float *scores, const float *x, const block *b, int64_t features) {
    const int64_t line = up(features, WIDTH);
    for (int64_t f = 0; f < features; f += WIDE)
        ag_panel(sum + f, line, b->keys, least(WIDE, features - f), scores, TALL * WIDE, WIDE, 1, x + b->query * line + f,
                 line, b->count, 1);
}

// The gradients of some queries, if these are wanted, or of some keys and values, or of both.
static void send_back(const operands *o, const places *p, const sizes *s, span queries, span keys, int of_q, int of_k) {
    const int64_t line = up(s->d, WIDTH), line_v = up(s->dv, WIDTH), count = keys.end - keys.begin;
    if (of_k) {
        ag_turn(p->q, line, o->q, s->line_q, s->d, s->queries);
        ag_turn(p->g, line_v, o->g, s->line_q, s->dv, s->queries);
        memset(p->dk, 0, (size_t)(count * line) * sizeof(float));
        memset(p->dv, 0, (size_t)(count * line_v) * sizeof(float));
    }
    for (int64_t query = queries.begin; query < queries.end; query += WIDE) {
        const block b = block_of(s, query, keys);
        products(p->w, o->k, o->q, s, &b, s->d);
        products(p->s, o->v, o->g, s, &b, s->dv);
        slopes(p, s, &b, o);
        if (of_q)
            ag_panel(o->q + query, s->line_q, s->d, b.count, o->k + b.key, TALL * s->line_k, s->line_k, 1, p->s, WIDE, b.keys, 0);
        if (of_k) {
            add_product(p->dk, p->s, p->q, &b, s->d);
            add_product(p->dv, p->w, p->g, &b, s->dv);
        }
    }
    if (of_k) {
        ag_turn(o->k + keys.begin, s->line_k, p->dk, line, count, s->d);
        ag_turn(o->v + keys.begin, s->line_k, p->dv, line_v, count, s->dv);
    }
}

typedef struct { float *dq, *dk, *dv; const float *q, *k, *v, *g, *lse, *delta; } tensors;

// The same for one sample where there is no memory, slowly.
static void send_back_plainly(const tensors *t, const sizes *s, const group *g, span queries, span keys, int of_q, int of_k) {
    for (int64_t f = 0; f < s->d && of_q; f++)
        for (int64_t i = queries.begin; i < queries.end; i++) t->dq[at(s, g, s->d, s->queries, f, i)] = 0.0f;
    for (int64_t j = keys.begin; j < keys.end && of_k; j++) {
        for (int64_t f = 0; f < s->d; f++) t->dk[at(s, g, s->d, s->keys, f, j)] = 0.0f;
        for (int64_t f = 0; f < s->dv; f++) t->dv[at(s, g, s->dv, s->keys, f, j)] = 0.0f;
    }
    for (int64_t i = queries.begin; i < queries.end; i++)
        for (int64_t j = keys.begin; j < least(keys.end, seen_by(s, i)); j++) {
            const int64_t query = at(s, g, 1, s->queries, 0, i);
            const float kept = kept_at(s, g, i, j);
            const float w = exp_(s->factor * product_of(t->q, t->k, s, g, s->d, i, j) - t->lse[query]);
            const float slope = s->factor * w * (product_of(t->g, t->v, s, g, s->dv, i, j) * kept - t->delta[query]);
            for (int64_t f = 0; f < s->d; f++) {
                const int64_t q = at(s, g, s->d, s->queries, f, i), k = at(s, g, s->d, s->keys, f, j);
                if (of_q) t->dq[q] += slope * t->k[k];
                if (of_k) t->dk[k] += slope * t->q[q];
            }
            for (int64_t f = 0; f < s->dv && of_k; f++)
                t->dv[at(s, g, s->dv, s->keys, f, j)] += w * kept * t->g[at(s, g, s->dv, s->queries, f, i)];
        }
}

// work: heads * batch * queries * keys
KERNEL(attention_grad, {
    float *dq; float *dk; float *dv; const float *q; const float *k; const float *v; const float *g; const float *lse;
    const float *delta; const void *key;
    int64_t heads; int64_t batch; int64_t queries; int64_t keys; int64_t d; int64_t d_values; int64_t causal;
    double factor; double rate;
}) {
    const sizes s = sizes_of(a->heads, a->batch, a->queries, a->keys, a->d, a->d_values, a->causal, a->factor,
                             a->rate, a->key);
    const int64_t size_q = size_of(s.d, s.line_q), size_k = size_of(s.d, s.line_k), size_v = size_of(s.dv, s.line_k),
                  size_g = size_of(s.dv, s.line_q);
    const int64_t floats = size_q + size_k + size_v + size_g + 2 * s.line_q, count = together(&s, floats, parts);
    if (!s.batch) return;
    // Where there are too few heads and samples for all threads, some make gradients of queries, and others of keys.
    const int64_t groups = (s.batch + count - 1) / count, units = s.heads * groups, many = units >= parts / 2;
    const int64_t most = (parts + units - 1) / units, of_queries = many ? 0 : least((s.queries + WIDE - 1) / WIDE, most);
    const int64_t of_keys = many ? 1 : least((s.keys + WIDTH - 1) / WIDTH, most), cuts = of_queries + of_keys;
    const tensors all = {a->dq, a->dk, a->dv, a->q, a->k, a->v, a->g, a->lse, a->delta};
    float *memory = ag_scratch(count * floats + extra(&s));
    const span mine = share(units * cuts, 1, part, parts);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
        const int64_t first = unit / cuts % groups * count, cut = unit % cuts;
        group g = {unit / cuts / groups, first, least(count, s.batch - first)};
        const int of_q = many || cut < of_queries, of_k = many || !of_q;
        const span queries = of_k ? (span){0, s.queries} : share(s.queries, WIDE, cut, of_queries);
        const span keys = many || of_q ? (span){0, s.keys} : share(s.keys, WIDTH, cut - of_queries, of_keys);
        if (!memory) {
            for (; g.count > 0; g.sample++, g.count--) send_back_plainly(&all, &s, &g, queries, keys, of_q, of_k);
            continue;
        }
        float *q = memory, *k = q + count * size_q, *v = k + count * size_k, *slope = v + count * size_v;
        float *lse = slope + count * size_g, *delta = lse + count * s.line_q;
        const places p = places_in(delta + count * s.line_q, &s);
        take(q, a->q, &s, &g, s.d, s.queries, s.line_q);
        take(k, a->k, &s, &g, s.d, s.keys, s.line_k);
        take(v, a->v, &s, &g, s.dv, s.keys, s.line_k);
        take(slope, a->g, &s, &g, s.dv, s.queries, s.line_q);
        take(lse, a->lse, &s, &g, 1, s.queries, s.line_q);
        take(delta, a->delta, &s, &g, 1, s.queries, s.line_q);
        for (int64_t i = 0; i < g.count; i++) {
            const operands o = {q + i * size_q, k + i * size_k, v + i * size_v, slope + i * size_g, lse + i * s.line_q,
                                delta + i * s.line_q, g.head, first + i};
            send_back(&o, &p, &s, queries, keys, of_q, of_k);
        }
        if (of_q) give(a->dq, q, &s, &g, s.d, s.queries, s.line_q, queries);
        if (of_k) give(a->dk, k, &s, &g, s.d, s.keys, s.line_k, keys);
        if (of_k) give(a->dv, v, &s, &g, s.dv, s.keys, s.line_k, keys);
    }
}
