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

void ag_score(float *w, float *bend, const sizes *s, const block *b, int64_t head, int64_t sample) {
    const terms *t = s->terms;
    const float hidden = -__builtin_inff(), cap = (float)t->softcap, slope = t->bits & SLOPED ? t->slopes[head] : 0.0f;
    const spread bias = spread_of(t->bias, t->bits >> BIAS, s, b, head, sample);
    const spread mask = spread_of(t->mask, t->bits >> MASK, s, b, head, sample);
    const int64_t samples = t->bits & BY_SAMPLE ? s->batch : 1, of = t->bits & BY_SAMPLE ? sample : 0;
    for (int64_t j = 0; j < b->keys; j++) {
        float *row = w + j * WIDE, most[WIDE];
        const int64_t key = b->key + j;
        scale(row, s->factor);
        if (cap > 0.0f) {
            for (int i = 0; i < WIDE; i++) most[i] = row[i] / cap;
            map_tanh(most, most, most, 0.0f, WIDE);
            for (int i = 0; i < WIDE; i++) row[i] = cap * most[i];
        }
        if (bend)
            for (int i = 0; i < WIDE; i++) bend[j * WIDE + i] = cap > 0.0f ? s->factor * (1.0f - most[i] * most[i]) : s->factor;
        if (t->bits & BIASED)
            for (int64_t i = 0; i < b->count; i++) row[i] += bias.x[i * bias.per_query + j * bias.per_key];
        if (t->bits & SLOPED)
            for (int i = 0; i < WIDE; i++) row[i] -= slope * __builtin_fabsf((float)(int32_t)(key - b->query - i));
        if (t->bits & MASKED && !mask.per_query) {
            if (mask.x[j * mask.per_key] == 0.0f)
                for (int i = 0; i < WIDE; i++) row[i] = hidden;
        } else if (t->bits & MASKED)
            for (int64_t i = 0; i < b->count; i++)
                row[i] = mask.x[i * mask.per_query + j * mask.per_key] != 0.0f ? row[i] : hidden;
        if (t->bits & SEGMENTED)
            for (int64_t i = 0; i < b->count; i++)
                if (t->q_segments[(b->query + i) * samples + of] != t->k_segments[key * samples + of]) row[i] = hidden;
        const int64_t blind = least(key - t->after - b->query, b->count), last = key + t->before - b->query;
        for (int64_t i = 0; i < blind; i++) row[i] = hidden;
        for (int64_t i = last + 1 > 0 ? last + 1 : 0; i < b->count; i++) row[i] = hidden;
    }
}
