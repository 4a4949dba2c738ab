// skip_if: the optimizer's steps are skipped from now on if bad > 0, and not otherwise
// state[8] = (..., skip), bad[1]
// grid: 1 invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint state_at, bad_at; };
layout(set = 0, binding = 0) buffer State_ { float state[]; };
layout(set = 0, binding = 1) readonly buffer Bad_ { float bad[]; };

void main() {
    if (invocation() == 0) state[state_at + 7] = bad[bad_at] > 0.0 ? 1.0 : 0.0;
}
