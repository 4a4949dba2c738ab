// The product of a convolution: weights with what the taps see.
#include "epilogue_args.glsl"
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 0) buffer OutQuads_ { vec4 out_quads[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 1) readonly buffer XQuads_ { vec4 x_quads[]; };
layout(set = 0, binding = 2) readonly buffer W_ { float w[]; };
layout(set = 0, binding = 2) readonly buffer WQuads_ { vec4 w_quads[]; };
#define OPERANDS out_at, x_at, w_at
#define PARAMS uint rows, cols, inner, channels, groups; EPILOGUE
#define PRODUCTS groups
#define LEFT w
#define LEFT_QUADS w_quads
#define RIGHT x
#define RIGHT_QUADS x_quads
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
    left_0 = w_at + product * rows * inner;
    right_0 = x_at + product * channels * plane(image);
    first = 0;
    end = inner;
}

vec4 a_quad(uint row, uint k) { return left_quad(row, k); }
vec4 b_quad(uint k, uint col) { return seen_quad(k, col, k < end, cols); }
#ifdef B_BY_WORDS
float b_word(uint k, uint col) {
    const uint word = seen(k, col, k < end && col < cols);
    return word == NOWHERE ? 0.0 : RIGHT[word];
}
#endif
