// matmul_sums: out = op(A) op(B), as matmul, and row_sums = the sums of the rows of op(A)
// out[rows, cols], row_sums[rows]; A[rows, inner], B[inner, cols], transposed with ta, tb
// grid: cols / TILE_COLS, rows / TILE_ROWS workgroups
// work: rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define ROW_SUMS
#define PARAMS uint row_sums_at;
#define PRODUCTS 1
#define MATRIX 0
#define FIRST 0
#define END inner
#include "matmul.glsl"
