// attention_bias_grad: dbias [heads or 1, queries, keys, batch or 1], the slopes of masked_attention's scores, added up
// over heads and samples where the bias has one for all.  A workgroup makes a tile of 64 queries and 32 keys.
// grid: squares * owners workgroups
// work: heads * batch * queries * keys * d * 6 multiply-adds
// turns: added * 416 * chunks of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"
#include "ieee.glsl"
#define TERMS 8
#include "attention_args.glsl"

layout(push_constant) uniform Args {
    uint batch, heads, queries, keys, squares, owners, d, dv, HIDES, dbias_at, q_at, k_at, v_at, g_at, lse_at, delta_at,
         key_at TERM_OFFSETS;
    float factor, rate TERM_FACTORS;
};
layout(set = 0, binding = 0) buffer Dbias_ { float dbias[]; };
#define GIVEN 1
#define GRADIENT
#include "attention_given.glsl"
#include "attention.glsl"
#include "attention_slopes.glsl"

void main() {
    const uint owner = workgroup() / squares, tile = workgroup() % squares, across = (keys + COLUMNS - 1) / COLUMNS;
    if (owner >= owners) return;
    const uint row_0 = tile / across * ROWS, column_0 = tile % across * COLUMNS;
    const uint axes = terms >> BIAS, samples = (axes & 1) != 0 ? batch : 1;
    mat4 sum = mat4(0.0);
    for (uint h = 0; h < ((axes & 8) != 0 ? 1 : heads); h++) {
        for (uint i = 0; i < ((axes & 1) != 0 ? 1 : batch); i++) {
            item = (axes & 1) != 0 ? owner % samples : i;
            enter((axes & 8) != 0 ? owner / samples : h);
            load_queries(row_0);
            const mat4 w = products(0, Q, row_0, K, column_0, d);
            mat4 s = products(1, G, row_0, V, column_0, dv);
            if (dropped != 0) s = matrixCompMult(s, kept_rows(row_0 + row(), column_0 + column()));
            ROLLED for (uint c = 0; c < 4; c++) {
                for (uint j = 0; j < 4; j++) {
                    const uint at = row() + c;
                    sum[c][j] += weight_of(row_0 + at, column_0 + column() + j, at, w[c][j]) * (s[c][j] - deltas[at]);
                }
            }
            barrier();  // the next tile's numbers take the place of `deltas`
        }
    }
    for (uint c = 0; c < 4; c++) {
        for (uint j = 0; j < 4; j++) {
            const uint query = row_0 + row() + c, k = column_0 + column() + j;
            const uint at = ((owner / samples * queries + query) * keys + k) * samples + owner % samples;
            if (query < queries && k < keys) dbias[dbias_at + at] = sum[c][j];
        }
    }
}
