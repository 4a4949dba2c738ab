// conv2d_input_grad_chain: conv2d_input_grad, then a chain of functions of each element and of c, d, e
// operands as of conv2d_input_grad; c, d, e[groups * channels or 1, image * batch or 1]
// grid: cols / TILE_COLS, rows / TILE_ROWS, groups workgroups
// work: groups * rows * cols * inner multiply-adds
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define CHAIN
#include "conv2d_backward.glsl"
