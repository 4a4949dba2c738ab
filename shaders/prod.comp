// prod: out[o, piece, i] = the product of the x[o, k, i] of the k of the piece, 1 of none
// grid: outer * pieces * inner / columns workgroups
#version 440
#extension GL_GOOGLE_include_directive : require
#define NEUTRAL 1.0
#define COMBINE multiplied
#include "fold.glsl"
