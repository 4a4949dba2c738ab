// matmul_coop_f16: matmul_coop with operands rounded to float16, scaled in bands; for devices without bfloat16
// out[rows, cols]; A[rows, inner], or [inner, rows] with ta; B[inner, cols], or [cols, inner] with tb
// Compiled only where the tools know cooperative matrices (kernels_build.py).
// grid: cols / TILE_COLS, rows / TILE_ROWS workgroups
// work: rows * cols * inner multiply-adds
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
#define PARAMS
#define PRODUCTS 1
#define MATRIX 0
#define FIRST 0
#define END inner
#include "matmul.glsl"
