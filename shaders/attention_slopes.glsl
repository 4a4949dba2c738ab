// What both halves of attention_grad need: its operands by number, and a weight and its slope made from two products.
#define Q 0
#define K 1
#define V 2
#define G 3

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

uint times_of(uint operand) { return operand == Q || operand == G ? queries : keys; }

bool inside(uint operand, uint f, uint t) {
    return f < (operand == V || operand == G ? dv : d) && t < times_of(operand);
}

float element(uint operand, uint f, uint t) {
    if (!inside(operand, f, t)) return 0.0;
    return operand == Q ? q[q_at + place(q_head, d, queries, f, t)]
         : operand == K ? k[k_at + place(kv_head, d, keys, f, t)]
         : operand == V ? v[v_at + place(kv_head, dv, keys, f, t)] : g[g_at + place(q_head, dv, queries, f, t)];
}

vec4 quad(uint operand, uint f, uint t) {
    if (!inside(operand, f, t)) return vec4(0.0);
    return operand == Q ? q_quads[(q_at + place(q_head, d, queries, f, t)) / 4]
         : operand == K ? k_quads[(k_at + place(kv_head, d, keys, f, t)) / 4]
         : operand == V ? v_quads[(v_at + place(kv_head, dv, keys, f, t)) / 4]
         : g_quads[(g_at + place(q_head, dv, queries, f, t)) / 4];
}
