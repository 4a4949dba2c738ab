// masked_attention_grad: cotangents dq, dk, dv of masked_attention's operands, as attention_grad makes them.
// grid: tiles * heads * batch * chunks workgroups
// work: heads * batch * queries * keys * d * 20 multiply-adds
// turns: times * 13 * group * chunks of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"
#include "ieee.glsl"
#define TERMS 10
#include "attention_backward.glsl"
