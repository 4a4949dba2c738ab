// What both halves of attention_grad need: a weight and its slope made from two products.
#include "attention_operands.glsl"

shared float lses[ROWS], deltas[ROWS];  // of the tile of queries

void load_queries(uint query_0) {
    const uint me = gl_LocalInvocationID.x, query = query_0 + me;
    if (me >= ROWS) return;
    lses[me] = query < queries ? lse[lse_at + place(q_head, 1, queries, 0, query)] : 0.0;
    deltas[me] = query < queries ? delta[delta_at + place(q_head, 1, queries, 0, query)] : 0.0;
}

// `i` is the place of the query in its tile, `product` that of the query and the key.
float weight_of(uint query, uint k, uint i, float product) {
#ifdef TERMS
    return ieee_exp(score(query, k, product) - lses[i]);
#else
    return visible(query, k) ? ieee_exp(factor * product - lses[i]) : 0.0;
#endif
}
float slope(float weight, float along, uint i, float product) { return bend(product) * weight * (along - deltas[i]); }
