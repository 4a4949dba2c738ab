// rope_pair: rope of x, and of y, whose heads come behind those of x.  also and y[more heads * dim, times, batch]
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) buffer Also_ { float also[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer Y_ { float y[]; };
layout(set = 0, binding = 4) readonly buffer Positions_ { int positions[]; };
layout(set = 0, binding = 5) readonly buffer Frequencies_ { uint frequencies[]; };
#define OFFSETS out_at, also_at, x_at, y_at,
#define TO(i) out_[out_at + (i)]
#define OF(i) x[x_at + (i)]
#define ALSO_TO(i) also[also_at + (i)]
#define ALSO_OF(i) y[y_at + (i)]
#define HEADS if (head < heads) TURN(TO, OF, head) else TURN(ALSO_TO, ALSO_OF, head - heads)
#include "rope.glsl"
