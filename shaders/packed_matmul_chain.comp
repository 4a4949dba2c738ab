// packed_matmul_chain: out = a chain of up to six functions of the product of packed_matmul, and of c, d, e
// out[rows, cols]; A in words and B as in packed_matmul; c, d, e[rows or 1, cols or 1]
// grid: cols / TILE_COLS, rows / TILE_ROWS workgroups
// work: rows * cols * inner multiply-adds
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define CHAIN
#define PACKED
#define PARAMS
#define PRODUCTS 1
#define MATRIX 0
#define FIRST 0
#define END inner
#include "matmul.glsl"
#include "epilogue.glsl"
