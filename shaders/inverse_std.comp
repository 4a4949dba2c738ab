// inverse_std: out = 1 / sqrt(variance + eps).  out[n], variance[n]
// grid: n invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args { uint n, out_at, variance_at; float eps; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer Variance_ { float variance[]; };

void main() {
    const uint i = invocation();
    if (i < n) out_[out_at + i] = rate_of(variance[variance_at + i], eps);
}
