// conv2d: out[o, place] = sum over taps and the channels of o's group of w[o, channel, tap] x[channel, pixel]
// out[groups * features, places, batch], x[groups * channels, image, batch], w[groups * features, channels, kernel]
// grid: cols / TILE_COLS, rows / TILE_ROWS, groups workgroups
// work: groups * rows * cols * inner multiply-adds
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "conv2d_forward.glsl"
