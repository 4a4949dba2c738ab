// rope: rotary positions; see rope.glsl.  out and x[heads * dim, times, batch]; positions; frequencies[rotary / 2, 2]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer Positions_ { int positions[]; };
layout(set = 0, binding = 3) readonly buffer Frequencies_ { uint frequencies[]; };
#define OFFSETS out_at, x_at,
#define TO(i) out_[out_at + (i)]
#define OF(i) x[x_at + (i)]
#define HEADS TURN(TO, OF, head)
#include "rope.glsl"
