// running_update: running += momentum (factor value - running).  running[n], value[n]
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint n, running_at, value_at; float momentum, factor; };
layout(set = 0, binding = 0) buffer Running_ { float running[]; };
layout(set = 0, binding = 1) readonly buffer Value_ { float value[]; };

void main() {
    const uint i = invocation();
    if (i < n) running[running_at + i] += momentum * (factor * value[value_at + i] - running[running_at + i]);
}
