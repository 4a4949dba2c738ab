// Convolutions as products of matrices, one for each group: LEFT, weights or cotangents, with what the taps see of
// RIGHT, which is looked up as it is needed and stored nowhere.  A plane of RIGHT and a tap count together along one
// axis, places and samples along the other, where four samples in a row are a quad if the batch allows it.
// The kernel declares operands before including this and defines: OPERANDS, PARAMS and PRODUCTS; LEFT and RIGHT, their
// elements, LEFT_QUAD and RIGHT_QUAD, the same in quads; GRID, the size of a plane of places, SOURCE, that of a plane
// of RIGHT, and LOOK, the function that gives the pixel of RIGHT for a place and a tap; A_ALONG_K and B_ALONG_K.
#include "window.glsl"
#include "product.glsl"
#ifdef CHAIN
#include "epilogue.glsl"
#endif

const uint NOWHERE = ~0u, TAPS = kernel_0 * kernel_1;
uint row_0, left_0, right_0;  // the first row of a product's part of out; where its part of the operands begins

// The word of RIGHT that belongs to plane and tap number i and place and sample number `at`.
uint seen(uint i, uint at, bool inside) {
    const uint plane = i / TAPS, tap = i % TAPS, down = tap / kernel_1, across = tap % kernel_1;
    const uint spot = quotient(at, by_batch[0], by_batch[1]), row = row_of(spot);
    const uint y = LOOK(0, row, down), x = LOOK(1, spot - row * GRID[1], across);
    const uint word = right_0 + ((plane * SOURCE[0] + y) * SOURCE[1] + x - spot) * batch + at;
    return inside && all(lessThan(uvec2(y, x), uvec2(SOURCE[0], SOURCE[1]))) ? word : NOWHERE;
}

vec4 seen_quad(uint i, uint at, bool inside, uint at_end) {
    if (vector != 0) {
        const uint word = seen(i, at, inside && at < at_end);
        return word == NOWHERE ? vec4(0.0) : RIGHT_QUAD(word);
    }
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const uint word = seen(i, at + c, inside && at + c < at_end);
        found[c] = word == NOWHERE ? 0.0 : RIGHT(word);
    }
    return found;
}

// Of a matrix [rows, inner] that lies in memory as it is.
vec4 left_quad(uint row, uint k) {
    const uint i = left_0 + row * inner + k;
    if (vector != 0 && inner % 4 == 0) return row < rows && k < end ? LEFT_QUAD(i) : vec4(0.0);
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) found[c] = row < rows && k + c < end ? LEFT(i + c) : 0.0;
    return found;
}

void put(uint row, uint col, vec4 quad) {
    if (row >= rows) return;
#ifdef CHAIN
    for (uint n = 0; n < 4; n++) quad[n] = chained(row_0 + row, min(col + n, cols - 1), quad[n]);
#endif
    const uint i = FIRST_OF(0, out_at) + (row_0 + row) * cols + col;
    if (vector != 0 && cols % 4 == 0) {
        if (col < cols) PUT_QUAD(out, 0, i, quad)
    } else {
        [[unroll]] for (uint c = 0; c < 4; c++)
            if (col + c < cols) PUT_ALONE(out_, 0, i + c, quad[c])
    }
}
