// scale_update: halve the loss scale and count a skipped step if bad > 0; else double it after interval good steps
// scaling[4] = (scale, 1 / scale, good steps in a row, skipped steps), bad[1]
// grid: 1 invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args { uint scaling_at, bad_at; float interval, largest; };
layout(set = 0, binding = 0) buffer Scaling_ { float scaling[]; };
layout(set = 0, binding = 1) readonly buffer Bad_ { float bad[]; };

void main() {
    if (invocation() != 0) return;
    float scale = scaling[scaling_at], good = scaling[scaling_at + 2] + 1.0;
    if (bad[bad_at] > 0.0) {
        scale = max(scale * 0.5, 1.0 / largest);
        good = 0.0;
        scaling[scaling_at + 3] += 1.0;
    } else if (good >= interval) {
        scale = min(scale * 2.0, largest);
        good = 0.0;
    }
    scaling[scaling_at] = scale;
    scaling[scaling_at + 1] = 1.0 / scale;
    scaling[scaling_at + 2] = good;
}
