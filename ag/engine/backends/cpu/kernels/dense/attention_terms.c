// The scores of masked attention: what becomes of products, and which keys are hidden; as in shaders/attention_terms.glsl.
#include "attention.h"
#include "functions.h"

// Bits of `terms`; 4 from MASK and BIAS on say along which of the axes (batch, keys, queries, heads) such an operand varies.
enum { MASK = 0, BIAS = 4, MASKED = 256, BIASED = 512, SEGMENTED = 1024, BY_SAMPLE = 2048, SLOPED = 4096 };

// Where an operand has the block's first query and key, and floats from query to query and from key to key.
typedef struct { const float *x; int64_t per_query, per_key; } spread;

static spread spread_of(const float *x, int64_t axes, const sizes *s, const block *b, int64_t head, int64_t sample) {
    const int64_t samples = axes & 1 ? s->batch : 1, keys = axes & 2 ? s->keys : 1, queries = axes & 4 ? s->queries : 1;
    const int64_t per_query = axes & 4 ? keys * samples : 0, per_key = axes & 2 ? samples : 0;
    const int64_t first = (axes & 8 ? head : 0) * queries * keys * samples + (axes & 1 ? sample : 0);
    return (spread){x + first + b->query * per_query + b->key * per_key, per_query, per_key};
}

// A pass over the rows per term: each is short enough to become vectors.
void ag_score(float *w, float *bend, const sizes *s, const block *b, int64_t head, int64_t sample) {
    const terms *t = s->terms;
    const float hidden = -__builtin_inff(), cap = (float)t->softcap, slope = t->bits & SLOPED ? t->slopes[head] : 0.0f;
    const spread bias = spread_of(t->bias, t->bits >> BIAS, s, b, head, sample);
    const spread shown = spread_of(t->mask, t->bits >> MASK, s, b, head, sample);
    const int64_t samples = t->bits & BY_SAMPLE ? s->batch : 1, of = t->bits & BY_SAMPLE ? sample : 0;
    const int64_t keys = b->keys, count = b->count;
    for (int64_t j = 0; j < keys; j++) scale(w + j * WIDE, s->factor);
    for (int64_t j = 0; bend && j < keys * WIDE; j++) bend[j] = s->factor;
    for (int64_t j = 0; cap > 0.0f && j < keys; j++) {
        float *row = w + j * WIDE;
        for (int i = 0; i < WIDE; i++) row[i] /= cap;
        map_tanh(row, row, row, 0.0f, WIDE);
        for (int i = 0; bend && i < WIDE; i++) bend[j * WIDE + i] *= 1.0f - row[i] * row[i];
        for (int i = 0; i < WIDE; i++) row[i] *= cap;
    }
    for (int64_t j = 0; t->bits & BIASED && j < keys; j++)
        for (int64_t i = 0; i < count; i++) w[j * WIDE + i] += bias.x[i * bias.per_query + j * bias.per_key];
    for (int64_t j = 0; t->bits & SLOPED && j < keys; j++)
        for (int i = 0; i < WIDE; i++) w[j * WIDE + i] -= slope * __builtin_fabsf((float)(int32_t)(b->key + j - b->query - i));
    for (int64_t j = 0; t->bits & MASKED && j < keys; j++) {
        const float *x = shown.x + j * shown.per_key;
        float *row = w + j * WIDE;
        if (!shown.per_query) {
            const mask kept = (mask){0} - (*x != 0.0f), none = (mask)((reg){0} + hidden);
            put(row, (reg)(((mask)get(row) & kept) | (none & ~kept)));
            put(row + WIDTH, (reg)(((mask)get(row + WIDTH) & kept) | (none & ~kept)));
        } else
            for (int64_t i = 0; i < count; i++) row[i] = x[i * shown.per_query] != 0.0f ? row[i] : hidden;
    }
    for (int64_t j = 0; t->bits & SEGMENTED && j < keys; j++)
        for (int64_t i = 0; i < count; i++)
            if (t->q_segments[(b->query + i) * samples + of] != t->k_segments[(b->key + j) * samples + of])
                w[j * WIDE + i] = hidden;
    const int all = b->key + keys - b->query <= t->after + 1 && b->query + count - b->key <= t->before + 1;
    for (int64_t j = 0; !all && j < keys; j++) {  // keys too far behind a query, or before it
        const int64_t key = b->key + j - b->query, blind = least(key - t->after, count), last = key + t->before;
        for (int64_t i = 0; i < blind; i++) w[j * WIDE + i] = hidden;
        for (int64_t i = last + 1 > 0 ? last + 1 : 0; i < count; i++) w[j * WIDE + i] = hidden;
    }
}
