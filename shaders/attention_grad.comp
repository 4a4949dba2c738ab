// attention_grad: cotangents dq, dk, dv of attention's operands, given g of its result, lse and attention_delta; the
// weights w are made again: dv = g w, and with the slopes s = factor w (v^T g - delta), dq = k s and dk = q s.
// The first workgroups have a tile of keys each and walk over the queries, the others the other way round.
// grid: tiles * heads * batch workgroups
// Makes 7 multiply-adds per feature of a pair, which take three times as long as in large products.
// work: heads * batch * queries * keys * d * 20 multiply-adds
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "index.glsl"
#include "ieee.glsl"
#include "attention_backward.glsl"
