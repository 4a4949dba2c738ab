// Dropout of attention weights: the bits that the kernel `dropout` draws for a tensor [batch, heads, queries, keys].
#include "philox.glsl"

// What dropout makes of a query's weights for 4 neighbouring keys: factors 0 or 1 / (1 - rate).  Weight number i, in
// [batch, heads, queries, keys], uses the i-th number of the stream.
vec4 kept(uint query, uint k) {
    uint high, low, carry;
    umulExtended((item * heads + head) * queries + query, keys, high, low);
    low = uaddCarry(low, k, carry);
    high += carry;
    const uvec2 seed = uvec2(key[key_at], key[key_at + 1]), stream = uvec2(key[key_at + 2], key[key_at + 3]);
    const uvec4 block = uvec4(high << 30 | low >> 2, high >> 2, stream);
    const uint skip = low % 4;
    vec4 u = uniform_from_bits(philox(seed, block));
    if (skip != 0) {
        const uvec4 next = uvec4(block.x + 1, block.y + (block.x + 1 == 0 ? 1 : 0), stream);
        const vec4 v = uniform_from_bits(philox(seed, next));
        u = skip == 1 ? vec4(u.yzw, v.x) : skip == 2 ? vec4(u.zw, v.xy) : vec4(u.w, v.xyz);
    }
    return mix(vec4(0.0), vec4(1.0 / (1.0 - rate)), greaterThanEqual(u, vec4(rate)));
}

// The same of 4 queries, one per column, for 4 keys; and of 4 keys, one per column, for 4 queries.
mat4 kept_rows(uint query, uint k) {
    mat4 found;
    for (uint c = 0; c < 4; c++) found[c] = kept(query + c, k);
    return found;
}
mat4 kept_columns(uint query, uint k) { return transpose(kept_rows(query, k)); }
