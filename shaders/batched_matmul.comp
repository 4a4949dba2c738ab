// batched_matmul: out[p, n] = op(A[n]) op(B[n]), as matmul, over the p-th piece of the inner axis, chunk long
// out[pieces, batch, rows, cols]; A[batch, rows, inner], or [batch, inner, rows] with ta; B likewise
// grid: cols / TILE_COLS, rows / TILE_ROWS, pieces * batch workgroups
// work: batch * rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define PARAMS uint pieces, batch, chunk;
#define PRODUCTS (pieces * batch)
#define MATRIX (product % batch)
#define FIRST (product / batch * chunk)
#define END min(first + chunk, inner)
#include "matmul.glsl"
