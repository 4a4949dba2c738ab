// running_update: running += momentum (factor value - running), where that value and the variance are finite.  All [n]
// grid: n invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n, running_at, value_at, variance_at; float momentum, factor; };
layout(set = 0, binding = 0) buffer Running_ { float running[]; };
layout(set = 0, binding = 1) readonly buffer Value_ { float value[]; };
layout(set = 0, binding = 2) readonly buffer Variance_ { float variance[]; };

bool finite(float x) { return (floatBitsToUint(x) & 0x7F800000u) != 0x7F800000u; }

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const float goal = factor * value[value_at + i], now = running[running_at + i];
    if (!finite(goal) || !finite(variance[variance_at + i])) return;
    // from the nearer end: a small goal has no digits left in goal - now
    running[running_at + i] = momentum <= 0.5 ? now + momentum * (goal - now) : goal + (1.0 - momentum) * (now - goal);
}
