// Convolutions as products of matrices, one for each group: LEFT, weights or cotangents, with what the taps see of
// RIGHT, which is looked up as it is needed and stored nowhere.  A plane of RIGHT and a tap count together along one
// axis, places and samples along the other, where four samples in a row are a quad if the batch allows it.
// The kernel declares operands before including this and defines: OPERANDS, PARAMS and PRODUCTS; LEFT, RIGHT, and
// LEFT_QUADS, RIGHT_QUADS, the same in quads; GRID, the size of a plane of places, SOURCE, that of a plane of RIGHT,
// and LOOK, the function that gives the pixel of RIGHT for a place and a tap; A_ALONG_K and B_ALONG_K.
#include "window.glsl"
#include "product.glsl"
#ifdef CHAIN
#include "epilogue.glsl"
#endif

const uint NOWHERE = ~0u;
uint row_0, left_0, right_0;  // the first row of a product's part of out; where its part of the operands begins

// Exact for numbers below a million, and cheaper than a division of integers.
uint quotient(uint n, uint d) { return uint((float(n) + 0.5) / float(d)); }

// The word of RIGHT that belongs to plane and tap number i and place and sample number `at`.
uint seen(uint i, uint at, bool inside) {
    const uint plane = quotient(i, kernel[0] * kernel[1]), tap = i - plane * kernel[0] * kernel[1];
    const uint down = quotient(tap, kernel[1]), spot = at / batch;
    const uint y = LOOK(0, spot / GRID[1], down), x = LOOK(1, spot % GRID[1], tap - down * kernel[1]);
    if (!inside || y >= SOURCE[0] || x >= SOURCE[1]) return NOWHERE;
    return right_0 + ((plane * SOURCE[0] + y) * SOURCE[1] + x) * batch + at % batch;
}

// Taps that look beyond the image read the first word of the buffer, which is dropped, as that takes no branch.
vec4 seen_quad(uint i, uint at, bool inside, uint at_end) {
    uvec4 word = uvec4(seen(i, at, inside && at < at_end));
    if (vector == 0) [[unroll]] for (uint c = 1; c < 4; c++) word[c] = seen(i, at + c, inside && at + c < at_end);
    const bvec4 nowhere = equal(word, uvec4(NOWHERE));
    word = mix(word, uvec4(0), nowhere);
    const vec4 found = vector != 0 ? RIGHT_QUADS[word.x / 4]
                                   : vec4(RIGHT[word.x], RIGHT[word.y], RIGHT[word.z], RIGHT[word.w]);
    return mix(found, vec4(0.0), nowhere);
}
vec4 b_inside(vec4 quad, uint k, uint col) { return quad; }

// Of a matrix [rows, inner] that lies in memory as it is.
bvec4 left_there(uint row, uint k) { return lessThan(k + uvec4(0, 1, 2, 3), uvec4(row < rows ? end : 0)); }
vec4 left_quad(uint row, uint k) {
    const uvec4 word = mix(uvec4(0), left_0 + row * inner + k + uvec4(0, 1, 2, 3), left_there(row, k));
    if (vector != 0 && inner % 4 == 0) return LEFT_QUADS[word.x / 4];
    return vec4(LEFT[word.x], LEFT[word.y], LEFT[word.z], LEFT[word.w]);
}
vec4 left_inside(vec4 quad, uint row, uint k) { return mix(vec4(0.0), quad, left_there(row, k)); }

void put(uint row, uint col, vec4 quad) {
    if (row >= rows) return;
#ifdef CHAIN
    for (uint n = 0; n < 4; n++) quad[n] = chained(row_0 + row, min(col + n, cols - 1), quad[n]);
#endif
    const uint i = out_at + (row_0 + row) * cols + col;
    if (vector != 0 && cols % 4 == 0) {
        if (col < cols) out_quads[i / 4] = quad;
    } else {
        [[unroll]] for (uint c = 0; c < 4; c++)
            if (col + c < cols) out_[i + c] = quad[c];
    }
}
