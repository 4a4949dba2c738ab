// conv2d_direct_chain: conv2d_direct, then a chain of functions of each element and of c, d, e
// operands as of conv2d_direct; c, d, e[groups * features or 1, places * batch or 1]
// grid: n invocations
// work: groups * rows * cols * inner multiply-adds
#version 440
#extension GL_GOOGLE_include_directive : require
#define CHAIN
#include "conv2d_forward_direct.glsl"
