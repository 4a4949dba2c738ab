// masked_attention: attention with terms of the scores: out = v softmax(score(k^T q)), where score(x) is
// softcap tanh(factor x / softcap) + bias - slope |query - key|, or -inf where window, mask or segments hide the key.
// out [heads * dv, queries, batch]; lse [heads, queries, batch]; q, k, v with `heads / group` heads of k and v
// bias, mask [heads, queries, keys, batch] or 1 along an axis; segments [time, batch or 1]; slopes [heads]
// grid: queries / 64 * heads * batch * chunks workgroups
// work: heads * batch * queries * keys * d * 4 multiply-adds
// turns: times * 13 * group * chunks of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"
#include "ieee.glsl"
#define TERMS 6
#include "attention_forward.glsl"
