// conv2d_chain: conv2d, then a chain of functions of each element and of c, d, e
// operands as of conv2d; c, d, e[groups * features or 1, places * batch or 1]
// grid: cols / TILE_COLS, rows / TILE_ROWS, groups workgroups
// work: groups * rows * cols * inner multiply-adds
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define CHAIN
#include "conv2d_forward.glsl"
