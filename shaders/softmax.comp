// softmax: out = exp(x - max x) / (sum of these), along the middle axis.  out, x [outer, length, inner]
// grid: outer * inner / columns workgroups
// work: outer * length * inner * 40 operations
// turns: 2 * length / shares of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "columns.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
#define LOAD EACH(i) some[i] = x[x_0 + place(k, i, end) * inner]

void main() {
    const uint column = column_of(inner), share = share_of(inner), end = column < outer * inner ? length : 0;
    const uint first = column / inner * length * inner + column % inner, x_0 = x_at + first, out_0 = out_at + first;
    float some[loads];
    Exponentials mine = NONE;
    {
        PASS {
            LOAD;
            include(mine, some, k, end);
        } AGAIN;
    }
    const Exponentials all = column_exponentials(mine, inner);
    PASS {
        if (whole == 0) LOAD;
        EACH(i) if (within(k, i, end))
            out_[out_0 + k * inner + i * (shares * inner)] = ieee_exp(some[i] - all.largest) / all.total;
    } AGAIN;
}
