// conv2d_input_grad: out[channel, pixel] = sum over the taps that see the pixel and the features of the channel's group
// of w[feature, channel, tap] g[feature, place]
// out[groups * channels, image, batch], w[groups * features, channels, kernel], g[groups * features, places, batch]
// grid: cols / TILE_COLS, rows / TILE_ROWS, groups workgroups
// work: groups * rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "conv2d_backward.glsl"
