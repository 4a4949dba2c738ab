// attention_grad, and with TERMS masked_attention_grad.
#include "attention_args.glsl"
layout(push_constant) uniform Args {
    uint batch, heads, queries, keys, tiles, d, dv, piece, span, HIDES, dq_at, dk_at, dv_at, q_at, k_at, v_at, g_at,
         lse_at, delta_at, key_at TERM_OFFSETS;
    float factor, rate TERM_FACTORS;
};
#define GIVEN 3
#define GRADIENT
#include "attention_given.glsl"
#include "attention.glsl"
#include "attention_sums.glsl"
#include "attention_slopes.glsl"
#include "attention_cotangents.glsl"

// `of_keys`: whether rows are keys and columns queries.
void walk(bool of_keys, uint row_0) {
    const uint row_1 = of_keys ? K : Q, row_2 = of_keys ? V : G, column_1 = of_keys ? Q : K, column_2 = of_keys ? G : V;
    const uint first = max(of_keys ? first_query(row_0) : first_key(row_0), piece * span);
    const uint end = min(of_keys ? end_query(row_0) : end_key(row_0), (piece + 1) * span);
    if (piece > 0 && first >= end) return;
    mat4 sums[blocks], sums_v[blocks];
    clear(sums);
    clear(sums_v);
    if (!of_keys) load_queries(row_0);
    hold(0, row_1, row_0, d);
    hold(1, row_2, row_0, dv);
#ifdef TERMS
    for (uint h = 0; h < (of_keys ? group : 1); h++) {  // the heads that share the keys
    if (of_keys) enter(head / group * group + h);
#endif
    for (uint column_0 = first; column_0 < end; column_0 += COLUMNS) {
        if (of_keys) load_queries(column_0);
        mat4 w = products(0, row_1, row_0, column_1, column_0, d);
        mat4 s = products(1, row_2, row_0, column_2, column_0, dv);
        const uint query_0 = of_keys ? column_0 + column() : row_0 + row();
        const uint key_0 = of_keys ? row_0 + row() : column_0 + column();
        mat4 keep = mat4(0.0);
        if (dropped != 0) {
            keep = kept_rows(query_0, key_0);
            if (of_keys) keep = transpose(keep);
            s = matrixCompMult(s, keep);
        }
        ROLLED for (uint c = 0; c < 4; c++) {
            for (uint j = 0; j < 4; j++) {
                const uint i = of_keys ? j : c, at = (of_keys ? column() : row()) + i;
                const float product = w[c][j];
                w[c][j] = weight_of(query_0 + i, key_0 + (of_keys ? c : j), at, product);
                s[c][j] = slope(w[c][j], s[c][j], at, product);
            }
        }
        if (of_keys) {
            share(dropped != 0 ? matrixCompMult(w, keep) : w);
            accumulate(sums_v, G, column_0, dv);
        }
        share(s);
        accumulate(sums, column_1, column_0, d);
    }
#ifdef TERMS
    }
#endif
    store(sums, row_1, row_0, d);
    if (of_keys) store(sums_v, V, row_0, dv);
}

void main() {
    uint tile = workgroup() / batch / heads;
    const uint key_tiles = (keys + ROWS - 1) / ROWS;
    item = workgroup() % batch;
    enter(workgroup() / batch % heads);
#ifdef TERMS
    feature_0 = tile / tiles * 32 * blocks;
    if (feature_0 > 0 && feature_0 >= max(d, dv)) return;
    tile %= tiles;
    if (tile < key_tiles && head >= heads / group) return;  // of which there are fewer
    if (tile < key_tiles) enter(head * group);
#endif
    const uint row_0 = (tile < key_tiles ? tile : tiles - 1 - tile) * ROWS;
#ifdef FIXED  // in one piece, of which software drivers compile half as much
    if (tile < tiles) walk(tile < key_tiles, row_0);
#else
    if (tile < key_tiles) walk(true, row_0);
    else if (tile < tiles) walk(false, row_0);
#endif
}
