// batched_matmul_coop_f16: batched_matmul_coop in float16, as matmul_coop_f16; out[p, n] = op(A[n]) op(B[n])
// out[pieces, batch, rows, cols]; A[batch, rows, inner], or [batch, inner, rows] with ta; B likewise
// Compiled only where the tools know cooperative matrices (kernels_build.py).
// grid: cols / TILE_COLS, rows / TILE_ROWS, pieces * batch workgroups
// work: batch * rows * cols * inner multiply-adds
// floats: relaxed
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define FLOAT16
#define BANDS
#define COOPERATIVE
#define PARAMS uint pieces, batch, chunk;
#define PRODUCTS (pieces * batch)
#define MATRIX (product % batch)
#define FIRST (product / batch * chunk)
#define END min(first + chunk, inner)
#include "matmul.glsl"
