// What becomes of a product of a query and a key on its way to a score, and who sees whom.  Heads of queries share keys
// and values by `group`; features beyond 128 are made in several workgroups.
#include "tanh.glsl"

layout(set = 0, binding = TERMS) readonly buffer Bias_ { float bias[]; };
layout(set = 0, binding = TERMS + 1) readonly buffer Mask_ { float mask[]; };
layout(set = 0, binding = TERMS + 2) readonly buffer Q_Segments_ { uint q_segments[]; };
layout(set = 0, binding = TERMS + 3) readonly buffer K_Segments_ { uint k_segments[]; };
layout(set = 0, binding = TERMS + 4) readonly buffer Slopes_ { float slopes[]; };

// Bits of `terms`, as ag/engine/kernels/attention.py sets them; 4 bits from MASK and BIAS on say along
// which of the axes (batch, keys, queries, heads) such an operand varies.
const uint MASK = 0, BIAS = 4;
const uint MASKED = 256, BIASED = 512, SEGMENTED = 1024, BY_SAMPLE = 2048, SLOPED = 4096, FIRST = 8192;

uint feature_0 = 0;  // of those whose sums this workgroup makes
uint q_head, kv_head;  // numbers among the matrices of queries, and of keys

void enter(uint h) {
    head = h;
    const bool first = (terms & FIRST) != 0;
    q_head = (first ? item * heads : 0) + h;
    kv_head = (first ? item * (heads / group) : 0) + h / group;
}

// Samples are the last axis of operands, or the first.
uint place(uint h, uint features, uint times, uint f, uint t) {
    const uint at = (h * features + f) * times + t;
    return (terms & FIRST) != 0 ? at : at * batch + item;
}

uint spread(uint axes, uint query, uint k) {
    uint at = (axes & 8) != 0 ? head : 0;
    if ((axes & 4) != 0) at = at * queries + query;
    if ((axes & 2) != 0) at = at * keys + k;
    return (axes & 1) != 0 ? at * batch + item : at;
}

uint segment(bool of_query, uint t) {
    const uint at = (terms & BY_SAMPLE) != 0 ? t * batch + item : t;
    return of_query ? q_segments[q_segments_at + at] : k_segments[k_segments_at + at];
}

bool visible(uint query, uint k) {
    if (query >= queries || k >= keys || k > query + after || query > k + before) return false;
    if ((terms & MASKED) != 0 && mask[mask_at + spread(terms >> MASK, query, k)] == 0.0) return false;
    return (terms & SEGMENTED) == 0 || segment(true, query) == segment(false, k);
}

float score(uint query, uint k, float product) {
    if (!visible(query, k)) return -INFINITY;
    float x = factor * product;
    if (softcap > 0.0) x = softcap * accurate_tanh(x / softcap);
    if ((terms & BIASED) != 0) x += bias[bias_at + spread(terms >> BIAS, query, k)];
    if ((terms & SLOPED) != 0) x -= slopes[slopes_at + head] * abs(float(int(k) - int(query)));
    return x;
}

// The slope of a score along the product.
float bend(float product) {
    if (softcap <= 0.0) return factor;
    const float t = accurate_tanh(factor * product / softcap);
    return factor * (1.0 - t * t);
}

// The keys that a tile of queries sees, and the queries that see a tile of keys.
uint first_key(uint query_0) { return query_0 > before ? (query_0 - before) / COLUMNS * COLUMNS : 0; }
uint end_key(uint query_0) { return min(keys, query_0 + ROWS + after); }
uint first_query(uint key_0) { return key_0 > after ? (key_0 - after) / COLUMNS * COLUMNS : 0; }
uint end_query(uint key_0) { return min(queries, key_0 + ROWS + before); }
