// sum: out[o, piece, i] = scale * (x[o, k, i] summed over the k of the piece); no k gives 0
// out[outer, pieces, inner], x[outer, length, inner]; a piece is chunk long, the last may be shorter
// grid: outer * pieces * inner workgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, pieces, chunk, out_at, x_at; float scale; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };

void main() {
    const uint element = workgroup();
    if (element >= outer * pieces * inner) return;
    const uint i = element % inner, piece = element / inner % pieces, o = element / inner / pieces;
    const uint row = x_at + o * length * inner + i, end = min((piece + 1) * chunk, length);
    float share = 0.0;
    for (uint k = piece * chunk + gl_LocalInvocationID.x; k < end; k += gl_WorkGroupSize.x) share += x[row + k * inner];
    const float total = workgroup_sum(share);
    if (gl_LocalInvocationID.x == 0) out_[out_at + element] = scale * total;
}
