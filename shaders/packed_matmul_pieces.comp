// packed_matmul_pieces: out[p] = op(A) B over the p-th piece of the inner axis, as packed_matmul
// out[pieces, rows, cols]; A in words and B as in packed_matmul; a piece has chunk places, a multiple of 32
// grid: cols / TILE_COLS, rows / TILE_ROWS, pieces workgroups
// work: rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define PACKED
#define PARAMS uint pieces, chunk;
#define PRODUCTS pieces
#define MATRIX 0
#define FIRST product * chunk
#define END min(first + chunk, inner)
#include "matmul.glsl"
