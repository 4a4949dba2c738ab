// conv2d_direct: out[o, place] = sum over taps and the channels of o's group of w[o, channel, tap] x[channel, pixel]
// out[groups * features, places, batch], x[groups * channels, image, batch], w[groups * features, channels, kernel]
// grid: n invocations
// work: groups * rows * cols * inner multiply-adds
#version 440
#extension GL_GOOGLE_include_directive : require
#include "conv2d_forward_direct.glsl"
