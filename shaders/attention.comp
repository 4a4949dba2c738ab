// attention: out = v softmax(factor k^T q) per sample and head, with dropout; if causal, query i sees the keys 0..i
// out [heads * dv, queries, batch]; lse [heads, queries, batch]: log(sum of exponentials), for attention_grad
// q, k, v [heads * d or dv, queries or keys, batch]; key[4] of the random numbers, if there is dropout
// grid: queries / 64 * heads * batch workgroups
// Products of so few columns, and exponentials, take twice as long as their multiply-adds do in large products.
// work: heads * batch * queries * keys * d * 4 multiply-adds
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"
#include "ieee.glsl"

#include "attention_forward.glsl"
