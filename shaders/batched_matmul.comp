// batched_matmul: out[p, n] = op(A[n]) op(B[n]), as matmul, over the p-th piece of the inner axis, chunk long
// out[pieces, batch, rows, cols]; A[batch, rows, inner], or [batch, inner, rows] with ta; B likewise
// grid: cols / 64, rows / 64, pieces * batch workgroups
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define PARAMS uint batch, chunk;
#define MATRIX (gl_WorkGroupID.z % batch)
#define FIRST (gl_WorkGroupID.z / batch * chunk)
#define END min(FIRST + chunk, inner)
#include "matmul.glsl"
