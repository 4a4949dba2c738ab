// attention, and with TERMS masked_attention: its numbers and operands, and what a workgroup does.
#include "attention_args.glsl"
layout(push_constant) uniform Args {
    uint batch, heads, queries, keys, d, dv, piece, span, HIDES, out_at, lse_at, q_at, k_at, v_at, key_at TERM_OFFSETS;
    float factor, rate TERM_FACTORS;
};
#define GIVEN 2
#include "attention_given.glsl"
NUMBERS(0, , Out, out_)
QUADS(0, , Out, out)
layout(set = 0, binding = 1) buffer Lse_ { float lse[]; };
layout(set = 0, binding = 5) readonly buffer Key_ { uint key[]; };
#include "attention.glsl"
#include "attention_sums.glsl"
#include "attention_online.glsl"
#include "attention_operands.glsl"
#include "attention_result.glsl"

void main() {
    const uint tiles = (queries + ROWS - 1) / ROWS, part = workgroup() / batch / heads;
    const uint tile = part % tiles;
#ifdef TERMS
    feature_0 = part / tiles * 32 * blocks;
    if (feature_0 > 0 && feature_0 >= dv) return;
#else
    if (part >= tiles) return;
#endif
    item = workgroup() % batch;
    enter(workgroup() / batch % heads);
    const uint row_0 = (tiles - 1 - tile) * ROWS, query = row_0 + row();  // if causal, the last have the most to do
    const uint end = min(end_key(row_0), (piece + 1) * span);
    mat4 sums[blocks];
    clear(sums);
    vec4 total = vec4(0.0);
    start();
    hold(0, Q, row_0, d);
    for (uint column_0 = max(first_key(row_0), piece * span); column_0 < end; column_0 += COLUMNS) {
        mat4 w = products(0, Q, row_0, K, column_0, d);
        for (uint e = 0; e < 16; e++) {
            w[e / 4][e % 4] = score(query + e / 4, column_0 + column() + e % 4, w[e / 4][e % 4]);
        }
        exponentials(w, total);
        if (dropped != 0) w = matrixCompMult(w, kept_rows(query, column_0 + column()));
        share(w);
        shrink_sums(sums);
        accumulate(sums, V, column_0, dv);
    }
    total = added(total);
    vec4 most = largest[row() / 4];
    if (piece > 0) {
        vec4 before = vec4(-INFINITY);
        for (uint c = 0; c < 4; c++)
            if (query + c < queries) before[c] = lse[lse_at + place(q_head, 1, queries, 0, query + c)];
        join(sums, total, most, before);
    }
    most = base(most);
    const bool last = (piece + 1) * span >= keys;
    const vec4 divisor = total + vec4(equal(total, vec4(0.0)));  // a query that sees nothing: 0 / 1
    [[unroll]] for (uint b = 0; b < blocks; b++) {
        for (uint c = 0; c < 4; c++) sums[b][c] /= divisor[c];
    }
    store(sums, 0, row_0, dv);
    for (uint c = 0; c < 4; c++)
        if (column() == 0 && query + c < queries)
            lse[lse_at + place(q_head, 1, queries, 0, query + c)] = most[c] + ieee_log(last ? divisor[c] : total[c]);
}
