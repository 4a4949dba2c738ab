// The product of a convolution: weights with what the taps see.
#include "conv2d_numbers.glsl"
NUMBERS(1, readonly, X, x)
QUADS(1, readonly, X, x)
NUMBERS(2, readonly, W, w)
QUADS(2, readonly, W, w)
#define OPERANDS out_at, x_at, w_at
#define PARAMS uint rows, cols, inner, channels, groups; EPILOGUE
#define PRODUCTS groups
#define LEFT(i) NUMBER(w, 2, 0, i)
#define LEFT_QUAD(i) QUAD(w, 2, i)
#define RIGHT(i) NUMBER(x, 1, 0, i)
#define RIGHT_QUAD(i) QUAD(x, 1, i)
#define GRID places
#define SOURCE image
#define LOOK pixel
#define A_ALONG_K true
#define B_ALONG_K false
#ifndef FIXED
#define B_BY_WORDS
#endif
#include "conv2d.glsl"

void begin(uint product) {
    row_0 = product * rows;
    left_0 = FIRST_OF(2, w_at) + product * rows * inner;
    right_0 = FIRST_OF(1, x_at) + product * channels * plane(image);
    first = 0;
    end = inner;
}

vec4 a_quad(uint row, uint k) { return left_quad(row, k); }
vec4 b_quad(uint k, uint col) { return seen_quad(k, col, k < end, cols); }
#ifdef B_BY_WORDS
float b_word(uint k, uint col) {
    const uint word = seen(k, col, k < end && col < cols);
    return word == NOWHERE ? 0.0 : RIGHT(word);
}
#endif
