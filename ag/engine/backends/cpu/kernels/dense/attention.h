// What attention and its gradients share: matrices of samples, scores of some queries, and dropout's factors.
// Samples are the last axis, and a product of matrices wants time there.  So the operands of a head are taken apart into
// a matrix [features, time] per sample, some samples at a time.  Then WIDE queries are done at once: their scores, keys
// by WIDE queries, stay in the cache until the last product is made of them; a matrix of all scores is never made.
#ifndef ATTENTION_H
#define ATTENTION_H
#include "tiles.h"
#include "philox.h"

enum { TOGETHER = 1 << 20 };  // floats of operands that are taken apart at once

// What scores of masked attention have beside products (attention_terms.c).
typedef struct {
    const float *bias, *mask;
    const int32_t *q_segments, *k_segments;
    const float *slopes;
    int64_t bits, before, after;
    double softcap;
} terms;

typedef struct {
    int64_t heads, batch, queries, keys, d, dv, causal, line_q, line_k;  // lines: floats from feature to feature
    float factor;
    double rate;
    const uint32_t *key;
    const terms *terms;  // or NULL
    int64_t group;  // heads that share keys and values
} sizes;

static inline sizes sizes_of(int64_t heads, int64_t batch, int64_t queries, int64_t keys, int64_t d, int64_t dv,
                             int64_t causal, double factor, double rate, const void *key, const terms *t, int64_t group) {
    return (sizes){heads, batch, queries, keys, d, dv, causal, up(queries, 16) | 16, up(keys, 16) | 16, (float)factor, rate,
                   key, t, group};
}

// ---------------------------------------------------------------------------------------------- matrices of samples

typedef struct { int64_t head, sample, count; } group;

// How many samples are done together: as many as a register has, fewer where these are long or threads would be idle.
static inline int64_t together(const sizes *s, int64_t floats, int64_t parts) {
    int64_t count = least(s->batch, 16);
    while (count > 1 && (count * floats > TOGETHER ||
                         (count > 4 && s->heads * ((s->batch + count - 1) / count) < parts / 2)))
        count = (count + 1) / 2;
    return count;
}

// The matrices of keys and values of a head.
static inline group shared(const sizes *s, const group *g) { return (group){g->head / s->group, g->sample, g->count}; }

// Floats from the matrix of a sample to the next one's: odd numbers of cache lines, as lines are (`sizes_of`), so that the
// samples of a feature do not share their places in the cache.
static inline int64_t size_of(int64_t features, int64_t line) { return (features * line) | 16; }

// From the features of a head of x [heads * features, time, batch] to matrices, one per sample and `size` floats apart, of
// `line` floats a row.
static inline void take(float *to, int64_t size, const float *x, int type, const sizes *s, const group *g, int64_t features,
                        int64_t time, int64_t line) {
    for (int64_t f = 0; f < features; f++) {
        const int64_t first = (g->head * features + f) * time * s->batch + g->sample;
        if (s->batch == 1 && type) ag_to_floats(to + f * line, from_at(x, type, first), time, type);
        else if (s->batch == 1) memcpy(to + f * line, x + first, (size_t)time * sizeof *to);
        else ag_turn_from(to + f * line, size, x, type, first, s->batch, time, g->count);
    }
}

// The reverse, for some times.
static inline void give(float *x, int type, const float *from, int64_t size, const sizes *s, const group *g,
                        int64_t features, int64_t time, int64_t line, span some) {
    const int64_t count = some.end - some.begin;
    for (int64_t f = 0; f < features; f++) {
        const int64_t first = ((g->head * features + f) * time + some.begin) * s->batch + g->sample;
        const float *row = from + f * line + some.begin;
        if (s->batch == 1 && type) ag_to_halves(to_at(x, type, first), row, count, type);
        else if (s->batch == 1) memcpy(x + first, row, (size_t)count * sizeof *x);
        else ag_turn_to(x, type, first, s->batch, row, size, g->count, count);
    }
}

// ---------------------------------------------------------------------------------------------- scores of some queries

// The queries from `query` on, `count` of them, and the keys from `key` on that they see, all or a range.
typedef struct { int64_t query, count, key, keys; } block;

static inline block block_of(const sizes *s, int64_t query, span keys) {
    const int64_t count = least(WIDE, s->queries - query);
    int64_t begin = keys.begin, end = s->causal ? least(keys.end, query + count) : keys.end;
    if (s->terms) {
        const int64_t first = (query - s->terms->before) / WIDTH * WIDTH;
        begin = first > begin ? least(first, keys.end) : begin;
        end = least(keys.end, query + count + s->terms->after);
    }
    return (block){query, count, begin, end > begin ? end - begin : 0};
}

// w[key, query] = the products of the columns of k and q, [features, time] each.
static inline void products(float *w, const float *k, const float *q, const sizes *s, const block *b, int64_t features) {
    if (b->count < WIDE) memset(w, 0, (size_t)(b->keys * WIDE) * sizeof *w);
    ag_panel(w, WIDE, b->keys, b->count, k + b->key, TALL, 1, s->line_k, q + b->query, s->line_q, features, 0);
}

static inline void scale(float *row, float factor) {
    put(row, factor * get(row));
    put(row + WIDTH, factor * get(row + WIDTH));
}

// How many of the block's first queries do not see a key.
static inline int64_t blind(const sizes *s, const block *b, int64_t key) {
    const int64_t behind = b->key + key - b->query;
    return !s->causal || behind <= 0 ? 0 : least(behind, WIDE);
}

// Products [keys, WIDE queries] become scores, and `bend`, unless it is NULL, has their slopes along the products.
HIDDEN void ag_score(float *w, float *bend, const sizes *s, const block *b, int64_t head, int64_t sample);

// What dropout keeps: a factor per key and query.
static inline void keep(float *kept, const sizes *s, const block *b, int64_t head, int64_t sample) {
    for (int64_t i = 0; i < b->count; i++) {
        const int64_t row = ((sample * s->heads + head) * s->queries + b->query + i) * s->keys;
        kept_of(kept + i, WIDE, b->keys, s->key, (uint64_t)(row + b->key), s->rate);
    }
    for (int64_t i = b->count; i < WIDE; i++)
        for (int64_t j = 0; j < b->keys; j++) kept[j * WIDE + i] = 0.0f;
}

// ---------------------------------------------------------------------------------------------- without memory

static inline int64_t at(const sizes *s, const group *g, int64_t features, int64_t time, int64_t f, int64_t t) {
    return ((g->head * features + f) * time + t) * s->batch + g->sample;
}

// The product of query i of x and key j of y, in sample g.
static inline float product_of(const float *x, int of_x, const float *y, int of_y, const sizes *s, const group *g,
                               int64_t features, int64_t i, int64_t j) {
    const group kv = shared(s, g);
    double sum = 0.0;
    for (int64_t f = 0; f < features; f++)
        sum += number_at(x, of_x, at(s, g, features, s->queries, f, i)) *
               number_at(y, of_y, at(s, &kv, features, s->keys, f, j));
    return (float)sum;
}

// The score of that product, and its slope along it.
static inline float score_of(float product, float *bend, const sizes *s, const group *g, int64_t i, int64_t j) {
    float w[WIDE] = {product}, slopes[WIDE];
    const block b = {i, 1, j, 1};
    if (s->terms) ag_score(w, slopes, s, &b, g->head, g->sample);
    if (bend) *bend = s->terms ? slopes[0] : s->factor;
    return s->terms ? w[0] : s->factor * product;
}

static inline float kept_at(const sizes *s, const group *g, int64_t i, int64_t j) {
    const int64_t number = ((g->sample * s->heads + g->head) * s->queries + i) * s->keys + j;
    float kept = 1.0f;
    if (s->rate > 0) kept_of(&kept, 1, 1, s->key, (uint64_t)number, s->rate);
    return kept;
}

static inline int64_t seen_by(const sizes *s, int64_t query) { return s->causal ? least(s->keys, query + 1) : s->keys; }
#endif
