// attention_grad: cotangents dq, dk, dv of attention's operands, given g of its result, lse and attention_delta; the
// weights w are made again: dv = g w, and with the slopes s = factor w (v^T g - delta), dq = k s and dk = q s.
// The first workgroups have a tile of keys each and walk over the queries, the others the other way round.
// grid: tiles * heads * batch workgroups
// Makes 7 multiply-adds per feature of a pair, which take three times as long as in large products.
// work: heads * batch * queries * keys * d * 20 multiply-adds
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"
#include "ieee.glsl"
layout(push_constant) uniform Args {
    uint batch, heads, queries, keys, tiles, d, dv, causal, dq_at, dk_at, dv_at, q_at, k_at, v_at, g_at, lse_at,
         delta_at, key_at;
    float factor, rate;
};
layout(set = 0, binding = 0) buffer Dq_ { float dq[]; };
layout(set = 0, binding = 0) buffer DqQuads_ { vec4 dq_quads[]; };
layout(set = 0, binding = 1) buffer Dk_ { float dk[]; };
layout(set = 0, binding = 1) buffer DkQuads_ { vec4 dk_quads[]; };
layout(set = 0, binding = 2) buffer Dv_ { float dv_[]; };
layout(set = 0, binding = 2) buffer DvQuads_ { vec4 dv_quads[]; };
layout(set = 0, binding = 3) readonly buffer Q_ { float q[]; };
layout(set = 0, binding = 3) readonly buffer QQuads_ { vec4 q_quads[]; };
layout(set = 0, binding = 4) readonly buffer K_ { float k[]; };
layout(set = 0, binding = 4) readonly buffer KQuads_ { vec4 k_quads[]; };
layout(set = 0, binding = 5) readonly buffer V_ { float v[]; };
layout(set = 0, binding = 5) readonly buffer VQuads_ { vec4 v_quads[]; };
layout(set = 0, binding = 6) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 6) readonly buffer GQuads_ { vec4 g_quads[]; };
layout(set = 0, binding = 7) readonly buffer Lse_ { float lse[]; };
layout(set = 0, binding = 8) readonly buffer Delta_ { float delta[]; };
layout(set = 0, binding = 9) readonly buffer Key_ { uint key[]; };
#include "attention.glsl"
#include "attention_slopes.glsl"

// `of_keys`: whether rows are keys and columns queries.
void walk(bool of_keys, uint row_0) {
    const uint row_1 = of_keys ? K : Q, row_2 = of_keys ? V : G, column_1 = of_keys ? Q : K, column_2 = of_keys ? G : V;
    const uint end = of_keys ? queries : causal != 0 ? min(keys, row_0 + ROWS) : keys;
    mat4 sums[blocks], sums_v[blocks];
    clear(sums);
    clear(sums_v);
    if (!of_keys) load_queries(row_0);
    hold(0, row_1, row_0, d);
    hold(1, row_2, row_0, dv);
    for (uint column_0 = of_keys && causal != 0 ? row_0 : 0; column_0 < end; column_0 += COLUMNS) {
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
                w[c][j] = weight_of(query_0 + i, key_0 + (of_keys ? c : j), at, w[c][j]);
                s[c][j] = slope(w[c][j], s[c][j], at);
            }
        }
        if (of_keys) {
            share(dropped != 0 ? matrixCompMult(w, keep) : w);
            accumulate(sums_v, G, column_0, dv);
        }
        share(s);
        accumulate(sums, column_1, column_0, d);
    }
    store(sums, row_1, row_0, d);
    if (of_keys) store(sums_v, V, row_0, dv);
}

void main() {
    const uint tile = workgroup() / batch / heads, key_tiles = (keys + ROWS - 1) / ROWS;
    item = workgroup() % batch;
    head = workgroup() / batch % heads;
    const uint row_0 = (tile < key_tiles ? tile : tiles - 1 - tile) * ROWS;
#ifdef FIXED  // in one piece, of which software drivers compile half as much
    if (tile < tiles) walk(tile < key_tiles, row_0);
#else
    if (tile < key_tiles) walk(true, row_0);
    else if (tile < tiles) walk(false, row_0);
#endif
}
