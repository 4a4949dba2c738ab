// packed_matmul: out = op(A) B, where op transposes with ta, of a packed matrix A (packed.glsl)
// out[rows, cols]; A[rows, inner], or [inner, rows] with ta, in words; B[inner, cols]
// grid: cols / TILE_COLS, rows / TILE_ROWS workgroups
// work: rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define PACKED
#define PARAMS
#define PRODUCTS 1
#define MATRIX 0
#define FIRST 0
#define END inner
#include "matmul.glsl"
