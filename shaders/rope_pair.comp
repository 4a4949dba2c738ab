// rope_pair: rope of x, and of y, whose heads come behind those of x.  also and y[more heads * dim, times, batch]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TYPES 0
#include "numbers.glsl"
NUMBERS(0, , Out, out_)
NUMBERS(1, , Also, also)
NUMBERS(2, readonly, X, x)
NUMBERS(3, readonly, Y, y)
layout(set = 0, binding = 4) readonly buffer Positions_ { int positions[]; };
layout(set = 0, binding = 5) readonly buffer Frequencies_ { uint frequencies[]; };
#define OFFSETS out_at, also_at, x_at, y_at,
#define TO(i, value) PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + (i), value)
#define OF(i) NUMBER(x, 2, x_at, i)
#define ALSO_TO(i, value) PUT_ALONE(also, 1, FIRST_OF(1, also_at) + (i), value)
#define ALSO_OF(i) NUMBER(y, 3, y_at, i)
#define HEADS if (head < heads) TURN(TO, OF, head) else TURN(ALSO_TO, ALSO_OF, head - heads)
#include "rope.glsl"
