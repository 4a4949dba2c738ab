// The product of a convolution's gradient by its input: weights with the cotangents that the taps give.
#include "epilogue_args.glsl"
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 0) buffer OutQuads_ { vec4 out_quads[]; };
layout(set = 0, binding = 1) readonly buffer W_ { float w[]; };
layout(set = 0, binding = 1) readonly buffer WQuads_ { vec4 w_quads[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 2) readonly buffer GQuads_ { vec4 g_quads[]; };
#define OPERANDS out_at, w_at, g_at
#define PARAMS uint rows, cols, inner, features, groups; EPILOGUE
#define PRODUCTS groups
#define LEFT w
#define LEFT_QUADS w_quads
#define RIGHT g
#define RIGHT_QUADS g_quads
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
    left_0 = w_at + product * rows * inner;
    right_0 = g_at + product * features * plane(places);
    first = 0;
    end = inner;
}

#ifdef A_BY_WORDS
float a_word(uint row, uint k) {
    const uint feature = k / TAPS;
    return row < rows && k < end ? w[left_0 + (feature * rows + row) * TAPS + k % TAPS] : 0.0;
}
#else
// Weights of four channels, which lie as many words apart as there are taps.
vec4 a_quad(uint row, uint k) {
    const uint i = left_0 + (k / TAPS * rows + row) * TAPS + k % TAPS;
    vec4 found;
    [[unroll]] for (uint c = 0; c < 4; c++) found[c] = row + c < rows && k < end ? w[i + c * TAPS] : 0.0;
    return found;
}
#endif

vec4 b_quad(uint k, uint col) { return seen_quad(k, col, k < end, cols); }
#ifdef B_BY_WORDS
float b_word(uint k, uint col) {
    const uint word = seen(k, col, k < end && col < cols);
    return word == NOWHERE ? 0.0 : RIGHT[word];
}
#endif
