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

vec4 seen_quad(uint i, uint at, bool inside, uint at_end) {
    if (vector != 0) {
        const uint word = seen(i, at, inside && at < at_end);
        return word == NOWHERE ? vec4(0.0) : RIGHT_QUADS[word / 4];
    }
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const uint word = seen(i, at + c, inside && at + c < at_end);
        found[c] = word == NOWHERE ? 0.0 : RIGHT[word];
    }
    return found;
}

// Of a matrix [rows, inner] that lies in memory as it is.
vec4 left_quad(uint row, uint k) {
    const uint i = left_0 + row * inner + k;
    if (vector != 0 && inner % 4 == 0) return row < rows && k < end ? LEFT_QUADS[i / 4] : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) found[c] = row < rows && k + c < end ? LEFT[i + c] : 0.0;
    return found;
}

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
