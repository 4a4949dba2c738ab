// attention_grad: cotangents dq, dk, dv of attention's operands, given g of its result, lse and attention_delta; the
// weights w are made again: dv = g w, and with the slopes s = factor w (v^T g - delta), dq = k s and dk = q s.
// The first workgroups have a tile of keys each and walk over the queries, the others the other way round.
// grid: tiles * heads * batch workgroups
// work: heads * batch * queries * keys * d * 7 multiply-adds
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

void by_keys(uint row_0) {
    mat4 sums_k[blocks], sums_v[blocks];
    clear(sums_k);
    clear(sums_v);
    hold(0, K, row_0, d);
    hold(1, V, row_0, dv);
    for (uint column_0 = causal != 0 ? row_0 : 0; column_0 < queries; column_0 += COLUMNS) {
        load_queries(column_0);
        mat4 w = products(0, K, row_0, Q, column_0, d), s = products(1, V, row_0, G, column_0, dv);
        const mat4 keep = dropped != 0 ? kept_columns(column_0 + column(), row_0 + row()) : mat4(0.0);
        ROLLED for (uint c = 0; c < 4; c++) {
            for (uint j = 0; j < 4; j++) {
                const uint i = column() + j;
                w[c][j] = weight_of(column_0 + i, row_0 + row() + c, i, w[c][j]);
                s[c][j] = slope(w[c][j], dropped != 0 ? keep[c][j] * s[c][j] : s[c][j], i);
            }
        }
        share(dropped != 0 ? matrixCompMult(w, keep) : w);
        accumulate(sums_v, G, column_0, dv);
        share(s);
        accumulate(sums_k, Q, column_0, d);
    }
    store(sums_k, K, row_0, d);
    store(sums_v, V, row_0, dv);
}

void by_queries(uint row_0) {
    mat4 sums[blocks];
    clear(sums);
    load_queries(row_0);
    hold(0, Q, row_0, d);
    hold(1, G, row_0, dv);
    const uint end = causal != 0 ? min(keys, row_0 + ROWS) : keys;
    for (uint column_0 = 0; column_0 < end; column_0 += COLUMNS) {
        mat4 w = products(0, Q, row_0, K, column_0, d), s = products(1, G, row_0, V, column_0, dv);
        if (dropped != 0) s = matrixCompMult(s, kept_rows(row_0 + row(), column_0 + column()));
        ROLLED for (uint c = 0; c < 4; c++) {
            for (uint j = 0; j < 4; j++) {
                const uint i = row() + c;
                s[c][j] = slope(weight_of(row_0 + i, column_0 + column() + j, i, w[c][j]), s[c][j], i);
            }
        }
        share(s);
        accumulate(sums, K, column_0, d);
    }
    store(sums, Q, row_0, d);
}

void main() {
    const uint tile = workgroup() / batch / heads, key_tiles = (keys + ROWS - 1) / ROWS;
    item = workgroup() % batch;
    head = workgroup() / batch % heads;
    if (tile < key_tiles) by_keys(tile * ROWS);
    else if (tile < tiles) by_queries((tiles - 1 - tile) * ROWS);
}
