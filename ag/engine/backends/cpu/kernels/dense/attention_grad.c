// The gradients of attention: with weights w made again, dv = g w^T; with the slopes s = w (v^T g - delta) of the scores,
// dq = k s and dk = q s^T, times the scores' factor.
// contract: a product and a sum may become one operation (ag.h)
#include "attention.h"

typedef struct {
    float *q, *k, *v, *g, *lse, *delta;  // matrices of a sample; gradients take the place of q, k and v
    int64_t head, sample;
} operands;

// Memory for one sample: weights, slopes, what is kept and slopes of scores along products, by keys and WIDE queries; then
// matrices [time, features].
typedef struct { float *w, *s, *kept, *bend, *q, *g, *dk, *dv; } places;

static int64_t extra(const sizes *s) {
    return 4 * s->keys * WIDE + (s->queries + s->keys) * (up(s->d, WIDTH) + up(s->dv, WIDTH));
}

static places places_in(float *memory, const sizes *s) {
    const int64_t scores = s->keys * WIDE, line = up(s->d, WIDTH), line_v = up(s->dv, WIDTH);
    float *q = memory + 4 * scores, *g = q + s->queries * line, *dk = g + s->queries * line_v;
    return (places){memory, memory + scores, memory + 2 * scores, memory + 3 * scores, q, g, dk, dk + s->keys * line};
}

// Weights and slopes of a block from the products of k and q, and of v and g; without `bend`, the slopes of scores.
static void slopes(const places *p, const sizes *s, const block *b, const operands *o) {
    const float *lse = o->lse + b->query, *delta = o->delta + b->query;
    if (s->rate > 0) keep(p->kept, s, b, o->head, o->sample);
    if (s->terms) ag_score(p->w, p->bend, s, b, o->head, o->sample);
    for (int64_t j = 0; j < b->keys; j++) {
        float *w = p->w + j * WIDE, *slope = p->s + j * WIDE, bend[WIDE];
        const float *kept = p->kept + j * WIDE;
        if (s->terms)
            for (int i = 0; i < WIDE; i++) w[i] = exp_(w[i] - lse[i]);
        else
            for (int i = 0; i < WIDE; i++) w[i] = exp_(s->factor * w[i] - lse[i]);
        for (int i = 0; i < WIDE; i++) bend[i] = !s->terms ? s->factor : p->bend ? p->bend[j * WIDE + i] : 1.0f;
        if (s->rate > 0) {
            for (int i = 0; i < WIDE; i++) {
                slope[i] = bend[i] * w[i] * (slope[i] * kept[i] - delta[i]);
                w[i] *= kept[i];
            }
        } else {
            for (int i = 0; i < WIDE; i++) slope[i] = bend[i] * w[i] * (slope[i] - delta[i]);
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

// The gradients of some queries, if these are wanted, or of some keys and values, or of both.  Those of keys and values
// are added up over the heads that share them, from the first to the last.
static void send_back(const operands *o, const places *p, const sizes *s, span queries, span keys, int of_q, int of_k) {
    const int first = o->head % s->group == 0, last = o->head % s->group == s->group - 1;
    const int64_t line = up(s->d, WIDTH), line_v = up(s->dv, WIDTH), count = keys.end - keys.begin;
    if (of_k) {
        ag_turn(p->q, line, o->q, s->line_q, s->d, s->queries);
        ag_turn(p->g, line_v, o->g, s->line_q, s->dv, s->queries);
        if (first) memset(p->dk, 0, (size_t)(count * line) * sizeof(float));
        if (first) memset(p->dv, 0, (size_t)(count * line_v) * sizeof(float));
    }
    for (int64_t query = queries.begin; query < queries.end; query += WIDE) {
        const block b = block_of(s, query, keys);
        products(p->w, o->k, o->q, s, &b, s->d);
        products(p->s, o->v, o->g, s, &b, s->dv);
        slopes(p, s, &b, o);
        if (of_q)
            ag_panel(o->q + query, s->line_q, s->d, b.count, o->k + b.key, TALL * s->line_k, s->line_k, 1, p->s, WIDE, b.keys, 0);
        if (of_k) {
            add_product(p->dk + (b.key - keys.begin) * line, p->s, p->q, &b, s->d);
            add_product(p->dv + (b.key - keys.begin) * line_v, p->w, p->g, &b, s->dv);
        }
    }
    if (of_k && last) {
        ag_turn(o->k + keys.begin, s->line_k, p->dk, line, count, s->d);
        ag_turn(o->v + keys.begin, s->line_k, p->dv, line_v, count, s->dv);
    }
}

typedef struct { float *dq, *dk, *dv; const float *q, *k, *v, *g, *lse, *delta; int of[7]; } tensors;

// The slope of the score of query i and key j, and the weight with what dropout keeps.
static float slope_of(float *weight, const tensors *t, const sizes *s, const group *g, int64_t i, int64_t j) {
    const int64_t query = at(s, g, 1, s->queries, 0, i);
    const float kept = kept_at(s, g, i, j);
    float bend;
    const float product = product_of(t->q, t->of[3], t->k, t->of[4], s, g, s->d, i, j);
    const float w = exp_(score_of(product, &bend, s, g, i, j) - t->lse[query]);
    *weight = w * kept;
    return bend * w * (product_of(t->g, t->of[6], t->v, t->of[5], s, g, s->dv, i, j) * kept - t->delta[query]);
}

// The same for one sample where there is no memory, slowly: an element at a time.
static void send_back_plainly(const tensors *t, const sizes *s, const group *kv, span queries, span keys, int of_q, int of_k) {
    for (int64_t h = 0; h < s->group && of_q; h++) {
        const group g = {kv->head * s->group + h, kv->sample, 1};
        for (int64_t f = 0; f < s->d; f++)
            for (int64_t i = queries.begin; i < queries.end; i++) {
                float sum = 0.0f, w;
                for (int64_t j = keys.begin; j < least(keys.end, seen_by(s, i)); j++)
                    sum += slope_of(&w, t, s, &g, i, j) * number_at(t->k, t->of[4], at(s, kv, s->d, s->keys, f, j));
                put_at(t->dq, t->of[0], at(s, &g, s->d, s->queries, f, i), sum);
            }
    }
    for (int64_t f = 0; f < (s->d > s->dv ? s->d : s->dv) && of_k; f++)
        for (int64_t j = keys.begin; j < keys.end; j++) {
            float dk = 0.0f, dv = 0.0f, w;
            for (int64_t h = 0; h < s->group; h++)
                for (int64_t i = queries.begin; i < queries.end; i++) {
                    if (j >= seen_by(s, i)) continue;
                    const group g = {kv->head * s->group + h, kv->sample, 1};
                    const float slope = slope_of(&w, t, s, &g, i, j);
                    if (f < s->d) dk += slope * number_at(t->q, t->of[3], at(s, &g, s->d, s->queries, f, i));
                    if (f < s->dv) dv += w * number_at(t->g, t->of[6], at(s, &g, s->dv, s->queries, f, i));
                }
            if (f < s->d) put_at(t->dk, t->of[1], at(s, kv, s->d, s->keys, f, j), dk);
            if (f < s->dv) put_at(t->dv, t->of[2], at(s, kv, s->dv, s->keys, f, j), dv);
        }
}

static void send_all_back(const tensors *a, sizes s, int64_t part, int64_t parts) {
    const int64_t size_q = size_of(s.d, s.line_q), size_k = size_of(s.d, s.line_k), size_v = size_of(s.dv, s.line_k),
                  size_g = size_of(s.dv, s.line_q);
    const int64_t of_head = size_q + size_g + 2 * s.line_q, floats = size_k + size_v + s.group * of_head;
    const int64_t count = together(&s, floats, parts);
    if (!s.batch) return;
    // Where there are too few heads and samples for all threads, some make gradients of queries, and others of keys.
    const int64_t groups = (s.batch + count - 1) / count, units = s.heads / s.group * groups, many = units >= parts / 2;
    const int64_t most = (parts + units - 1) / units, of_queries = many ? 0 : least((s.queries + WIDE - 1) / WIDE, most);
    const int64_t of_keys = many ? 1 : least((s.keys + WIDTH - 1) / WIDTH, most), cuts = of_queries + of_keys;
    float *memory = ag_scratch(count * floats + extra(&s));
    const span mine = share(units * cuts, 1, part, parts);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
        const int64_t first = unit / cuts % groups * count, cut = unit % cuts, kv_head = unit / cuts / groups;
        const group kv = {kv_head, first, least(count, s.batch - first)};
        const int of_q = many || cut < of_queries, of_k = many || !of_q;
        const span queries = of_k ? (span){0, s.queries} : share(s.queries, WIDE, cut, of_queries);
        const span keys = many || of_q ? (span){0, s.keys} : share(s.keys, WIDTH, cut - of_queries, of_keys);
        if (!memory) {
            for (int64_t i = 0; i < kv.count; i++)
                send_back_plainly(a, &s, &(group){kv_head, first + i, 1}, queries, keys, of_q, of_k);
            continue;
        }
        float *k = memory, *v = k + count * size_k, *of_heads = v + count * size_v;
        const places p = places_in(of_heads + s.group * count * of_head, &s);
        take(k, size_k, a->k, a->of[4], &s, &kv, s.d, s.keys, s.line_k);
        take(v, size_v, a->v, a->of[5], &s, &kv, s.dv, s.keys, s.line_k);
        for (int64_t h = 0; h < s.group; h++) {
            const group g = {kv_head * s.group + h, first, kv.count};
            float *q = of_heads + h * count * of_head, *slope = q + count * size_q, *lse = slope + count * size_g;
            take(q, size_q, a->q, a->of[3], &s, &g, s.d, s.queries, s.line_q);
            take(slope, size_g, a->g, a->of[6], &s, &g, s.dv, s.queries, s.line_q);
            take(lse, s.line_q, a->lse, FLOATS, &s, &g, 1, s.queries, s.line_q);
            take(lse + count * s.line_q, s.line_q, a->delta, FLOATS, &s, &g, 1, s.queries, s.line_q);
        }
        for (int64_t i = 0; i < kv.count; i++)
            for (int64_t h = 0; h < s.group; h++) {
                float *q = of_heads + h * count * of_head, *slope = q + count * size_q, *lse = slope + count * size_g;
                const operands o = {q + i * size_q, k + i * size_k, v + i * size_v, slope + i * size_g, lse + i * s.line_q,
                                    lse + (count + i) * s.line_q, kv_head * s.group + h, first + i};
                send_back(&o, &p, &s, queries, keys, of_q, of_k);
            }
        for (int64_t h = 0; h < s.group && of_q; h++) {
            const group g = {kv_head * s.group + h, first, kv.count};
            give(a->dq, a->of[0], of_heads + h * count * of_head, size_q, &s, &g, s.d, s.queries, s.line_q, queries);
        }
        if (of_k) give(a->dk, a->of[1], k, size_k, &s, &kv, s.d, s.keys, s.line_k, keys);
        if (of_k) give(a->dv, a->of[2], v, size_v, &s, &kv, s.dv, s.keys, s.line_k, keys);
    }
}

#define TENSORS(a) (tensors){(a)->dq, (a)->dk, (a)->dv, (a)->q, (a)->k, (a)->v, (a)->g, (a)->lse, (a)->delta, \
    {type_of((a)->types, 0), type_of((a)->types, 1), type_of((a)->types, 2), type_of((a)->types, 3), \
     type_of((a)->types, 4), type_of((a)->types, 5), type_of((a)->types, 6)}}

// work: heads * batch * queries * keys
KERNEL(attention_grad, {
    number *dq; number *dk; number *dv; const number *q; const number *k; const number *v; const number *g; const float *lse;
    const float *delta; const void *key;
    int64_t heads; int64_t batch; int64_t queries; int64_t keys; int64_t d; int64_t d_values; int64_t causal;
    double factor; double rate; int64_t types;
}) {
    send_all_back(&TENSORS(a),
                  sizes_of(a->heads, a->batch, a->queries, a->keys, a->d, a->d_values, a->causal, a->factor, a->rate,
                           a->key, NULL, 1), part, parts);
}

// work: heads * batch * queries * keys
KERNEL(masked_attention_grad, {
    number *dq; number *dk; number *dv; const number *q; const number *k; const number *v; const number *g; const float *lse;
    const float *delta; const void *key; const float *bias; const float *mask; const int32_t *q_segments;
    const int32_t *k_segments; const float *slopes;
    int64_t heads; int64_t batch; int64_t queries; int64_t keys; int64_t d; int64_t d_values; int64_t group; int64_t terms;
    int64_t before; int64_t after; double factor; double softcap; double rate;
    int64_t types;
}) {
    const terms t = {a->bias, a->mask, a->q_segments, a->k_segments, a->slopes, a->terms, a->before, a->after, a->softcap};
    send_all_back(&TENSORS(a),
                  sizes_of(a->heads, a->batch, a->queries, a->keys, a->d, a->d_values, 0, a->factor, a->rate, a->key, &t,
                           a->group), part, parts);
}

// The slopes of scores of some queries, added to `to`, whose keys are `samples` floats apart.
static void add_slopes(float *to, int64_t samples, const operands *o, const places *p, const sizes *s, span queries) {
    for (int64_t query = queries.begin; query < queries.end; query += WIDE) {
        const block b = block_of(s, query, (span){0, s->keys});
        products(p->w, o->k, o->q, s, &b, s->d);
        products(p->s, o->v, o->g, s, &b, s->dv);
        slopes(p, s, &b, o);
        for (int64_t i = 0; i < b.count; i++) {
            float *row = to + ((query + i) * s->keys + b.key) * samples;
            for (int64_t j = 0; j < b.keys; j++) row[j * samples] += p->s[j * WIDE + i];
        }
    }
}

static void add_slopes_plainly(float *to, int64_t samples, const tensors *t, const sizes *s, const group *g, span queries) {
    for (int64_t i = queries.begin; i < queries.end; i++)
        for (int64_t j = 0; j < s->keys; j++) {
            const int64_t query = at(s, g, 1, s->queries, 0, i);
            const float w = exp_(score_of(product_of(t->q, t->of[3], t->k, t->of[4], s, g, s->d, i, j), NULL, s, g, i, j) - t->lse[query]);
            const float along = product_of(t->g, t->of[6], t->v, t->of[5], s, g, s->dv, i, j) * kept_at(s, g, i, j);
            to[(i * s->keys + j) * samples] += w * (along - t->delta[query]);
        }
}

// work: heads * batch * queries * keys
KERNEL(attention_bias_grad, {
    float *dbias; const number *q; const number *k; const number *v; const number *g; const float *lse; const float *delta;
    const void *key; const float *bias; const float *mask; const int32_t *q_segments; const int32_t *k_segments;
    const float *slopes;
    int64_t heads; int64_t batch; int64_t queries; int64_t keys; int64_t d; int64_t dv; int64_t group; int64_t terms;
    int64_t owners; int64_t before; int64_t after; double factor; double softcap; double rate; int64_t types;
}) {
    const terms t = {a->bias, a->mask, a->q_segments, a->k_segments, a->slopes, a->terms, a->before, a->after, a->softcap};
    const sizes s = sizes_of(a->heads, a->batch, a->queries, a->keys, a->d, a->dv, 0, a->factor, a->rate, a->key, &t,
                             a->group);
    const tensors all = {NULL, NULL, NULL, a->q, a->k, a->v, a->g, a->lse, a->delta, {
        0, 0, 0, type_of(a->types, 1), type_of(a->types, 2), type_of(a->types, 3), type_of(a->types, 4)}};
    const int64_t by_sample = a->terms >> 4 & 1, by_head = a->terms >> 7 & 1, samples = by_sample ? s.batch : 1;
    const int64_t size_q = size_of(s.d, s.line_q), size_k = size_of(s.d, s.line_k), size_v = size_of(s.dv, s.line_k),
                  size_g = size_of(s.dv, s.line_q);
    const int64_t blocks = (s.queries + WIDE - 1) / WIDE;
    if (!a->owners || !blocks) return;
    const int64_t cuts = a->owners < parts ? least(blocks, (parts + a->owners - 1) / a->owners) : 1;
    float *q = ag_scratch(size_q + size_k + size_v + size_g + 2 * s.line_q + 3 * s.keys * WIDE);
    float *k = q + size_q, *v = k + size_k, *g = v + size_v, *lse = g + size_g, *delta = lse + s.line_q;
    float *w = delta + s.line_q;
    const places p = {.w = w, .s = w + s.keys * WIDE, .kept = w + 2 * s.keys * WIDE};
    const span mine = share(a->owners * cuts, 1, part, parts);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
        const int64_t owner = unit / cuts, head = owner / samples, sample = owner % samples;
        const span queries = share(s.queries, WIDE, unit % cuts, cuts);
        float *to = a->dbias + head * s.queries * s.keys * samples + sample;
        for (int64_t i = queries.begin * s.keys; i < queries.end * s.keys; i++) to[i * samples] = 0.0f;
        for (int64_t h = by_head ? head : 0; h < (by_head ? head + 1 : s.heads); h++)
            for (int64_t n = by_sample ? sample : 0; n < (by_sample ? sample + 1 : s.batch); n++) {
                const group one = {h, n, 1}, kv = shared(&s, &one);
                if (!q) {
                    add_slopes_plainly(to, samples, &all, &s, &one, queries);
                    continue;
                }
                take(q, size_q, a->q, all.of[3], &s, &one, s.d, s.queries, s.line_q);
                take(k, size_k, a->k, all.of[4], &s, &kv, s.d, s.keys, s.line_k);
                take(v, size_v, a->v, all.of[5], &s, &kv, s.dv, s.keys, s.line_k);
                take(g, size_g, a->g, all.of[6], &s, &one, s.dv, s.queries, s.line_q);
                take(lse, s.line_q, a->lse, FLOATS, &s, &one, 1, s.queries, s.line_q);
                take(delta, s.line_q, a->delta, FLOATS, &s, &one, 1, s.queries, s.line_q);
                add_slopes(to, samples, &(operands){q, k, v, g, lse, delta, h, n}, &p, &s, queries);
            }
    }
}
