// rope: rotary positions; see rope.glsl.  out and x[heads * dim, times, batch]; positions; frequencies[rotary / 2, 2]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TYPES 0
#include "numbers.glsl"
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)
layout(set = 0, binding = 2) readonly buffer Positions_ { int positions[]; };
layout(set = 0, binding = 3) readonly buffer Frequencies_ { uint frequencies[]; };
#define OFFSETS out_at, x_at,
#define TO(i, value) PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + (i), value)
#define OF(i) NUMBER(x, 1, x_at, i)
#define HEADS TURN(TO, OF, head)
#include "rope.glsl"
