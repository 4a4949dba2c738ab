// norm_statistics: mean and variance of each piece of each row; mean, variance [rows, pieces], x [rows, length]
// A piece is chunk long, the last may be shorter.  Two passes, so that a large mean costs no digits.
// grid: rows * pieces workgroups
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "rows.glsl"

layout(push_constant) uniform Args { uint rows, length, pieces, chunk, mean_at, variance_at, x_at; };
layout(set = 0, binding = 0) buffer Mean_ { float mean[]; };
layout(set = 0, binding = 1) buffer Variance_ { float variance[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };

const uint SOME = 16;

void main() {
    const uint row = workgroup() / pieces, first = workgroup() % pieces * chunk, end = min(first + chunk, length);
    if (row >= rows) return;
    const uint x_0 = x_at + row * length;
    float mine = 0.0;
    uint i = first + me();
    ROUNDS(i, end, SOME) {
        float some[SOME];
        EACH(c, SOME) some[c] = x[x_0 + i + c * 128];
        EACH(c, SOME) mine += some[c];
    }
    REST(i, end) mine += x[x_0 + i];
    const float centre = row_sum(0, mine) / float(end - first);
    mine = 0.0;
    i = first + me();
    ROUNDS(i, end, SOME) {
        float some[SOME];
        EACH(c, SOME) some[c] = x[x_0 + i + c * 128] - centre;
        EACH(c, SOME) mine += some[c] * some[c];
    }
    REST(i, end) {
        const float apart = x[x_0 + i] - centre;
        mine += apart * apart;
    }
    const float spread = row_sum(1, mine) / float(end - first);
    if (me() != 0) return;
    mean[mean_at + workgroup()] = centre;
    variance[variance_at + workgroup()] = spread;
}
