// batched_matmul: out[n] = op(A[n]) op(B[n]) for each n of a batch, otherwise as matmul
// out[batch, rows, cols]; A[batch, rows, inner], or [batch, inner, rows] with ta; B likewise
// grid: cols / 64, rows / 64, batch workgroups
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "matmul.glsl"
