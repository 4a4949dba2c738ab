// conv2d_weight_grad: out[piece, o, channel, tap] = sum over the piece's places and samples of
// g[o, place] x[channel of o's group, pixel]; places and samples are counted together, and a piece is chunk long
// out[pieces, groups * features, channels, kernel], x[groups * channels, image, batch], g[..., places, batch]
// grid: cols / TILE_COLS, rows / TILE_ROWS, pieces * groups workgroups
// work: groups * rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "conv2d_numbers.glsl"
NUMBERS(1, readonly, X, x)
QUADS(1, readonly, X, x)
NUMBERS(2, readonly, G, g)
QUADS(2, readonly, G, g)
#define OPERANDS out_at, x_at, g_at
#define PARAMS uint rows, cols, inner, channels, groups, pieces, chunk;
#define PRODUCTS (pieces * groups)
#define LEFT(i) NUMBER(g, 2, 0, i)
#define LEFT_QUAD(i) QUAD(g, 2, i)
#define RIGHT(i) NUMBER(x, 1, 0, i)
#define RIGHT_QUAD(i) QUAD(x, 1, i)
#define GRID places
#define SOURCE image
#define LOOK pixel
#define A_ALONG_K true
#define B_ALONG_K true
#include "conv2d.glsl"

void begin(uint product) {
    const uint group = product % groups;
    row_0 = product * rows;
    left_0 = FIRST_OF(2, g_at) + group * rows * inner;
    right_0 = FIRST_OF(1, x_at) + group * channels * plane(image);
    first = product / groups * chunk;
    end = min(first + chunk, inner);
}

vec4 a_quad(uint row, uint k) { return left_quad(row, k); }
vec4 b_quad(uint k, uint col) { return seen_quad(col, k, col < cols, end); }
