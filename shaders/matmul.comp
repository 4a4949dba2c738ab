// matmul: out = op(A) op(B), where op transposes if its flag is set; float32 sums, and 0 where nothing is added
// out[rows, cols]; A[rows, inner], or [inner, rows] with ta; B[inner, cols], or [cols, inner] with tb
// grid: cols / TILE_COLS, rows / TILE_ROWS workgroups
// work: rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define PARAMS
#define PRODUCTS 1
#define MATRIX 0
#define FIRST 0
#define END inner
#include "matmul.glsl"
