// The product of a convolution's gradient by its input: weights with the cotangents that the taps give.
#include "conv2d_numbers.glsl"
NUMBERS(1, readonly, W, w)
QUADS(1, readonly, W, w)
NUMBERS(2, readonly, G, g)
QUADS(2, readonly, G, g)
#define OPERANDS out_at, w_at, g_at
#define PARAMS uint rows, cols, inner, features, groups; EPILOGUE
#define PRODUCTS groups
#define LEFT(i) NUMBER(w, 1, 0, i)
#define LEFT_QUAD(i) QUAD(w, 1, i)
#define RIGHT(i) NUMBER(g, 2, 0, i)
#define RIGHT_QUAD(i) QUAD(g, 2, i)
#define GRID image
#define SOURCE places
#define LOOK place
#define A_ALONG_K false
#define B_ALONG_K false
#ifndef FIXED
#define B_BY_WORDS
// Neighbours then read the taps of a channel, and the channels beside it; of one tap each, channels lie side by side.
#define A_BY_WORDS (kernel_0 * kernel_1 > 1)
#endif
#include "conv2d.glsl"

void begin(uint product) {
    row_0 = product * rows;
    left_0 = FIRST_OF(1, w_at) + product * rows * inner;
    right_0 = FIRST_OF(2, g_at) + product * features * plane(places);
    first = 0;
    end = inner;
}

#ifdef A_BY_WORDS
float a_word(uint row, uint k) {
    const uint feature = k / TAPS;
    return row < rows && k < end ? LEFT(left_0 + (feature * rows + row) * TAPS + k % TAPS) : 0.0;
}
#else
// Weights of four channels, which lie as many words apart as there are taps.
vec4 a_quad(uint row, uint k) {
    const uint i = left_0 + (k / TAPS * rows + row) * TAPS + k % TAPS;
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) found[c] = row + c < rows && k < end ? LEFT(i + c * TAPS) : 0.0;
    return found;
}
#endif

vec4 b_quad(uint k, uint col) { return seen_quad(k, col, k < end, cols); }
#ifdef B_BY_WORDS
float b_word(uint k, uint col) {
    const uint word = seen(k, col, k < end && col < cols);
    return word == NOWHERE ? 0.0 : RIGHT(word);
}
#endif
