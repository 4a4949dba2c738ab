// max: out[o, piece, i] = the largest x[o, k, i] of the k of the piece, NaN if one of them is
// grid: outer * pieces * inner / columns workgroups
#version 440
#extension GL_GOOGLE_include_directive : require
#define NEUTRAL -INFINITY
#define COMBINE larger
#include "fold.glsl"
