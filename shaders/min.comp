// min: out[o, piece, i] = the smallest x[o, k, i] of the k of the piece, NaN if one of them is
// grid: outer * pieces * inner / columns workgroups
#version 440
#extension GL_GOOGLE_include_directive : require
#define NEUTRAL INFINITY
#define COMBINE smaller
#include "fold.glsl"
