// matmul_chain: out = a chain of up to six elementwise functions of the product op(A) op(B), as matmul, and of c, d, e
// out[rows, cols]; A[rows, inner], B[inner, cols], transposed with ta, tb; c, d, e[rows or 1, cols or 1]
// grid: cols / TILE_COLS, rows / TILE_ROWS workgroups
// work: rows * cols * inner multiply-adds
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define CHAIN
#define PARAMS
#define PRODUCTS 1
#define MATRIX 0
#define FIRST 0
#define END inner
#include "matmul.glsl"
#include "epilogue.glsl"
