// conv2d_input_grad_direct: out[channel, pixel] = sum over the taps that see the pixel and the features of the
// channel's group of w[feature, channel, tap] g[feature, place]
// out[groups * channels, image, batch], w[groups * features, channels, kernel], g[groups * features, places, batch]
// grid: n invocations
// work: groups * rows * cols * inner multiply-adds
#version 440
#extension GL_GOOGLE_include_directive : require
#include "conv2d_backward_direct.glsl"
