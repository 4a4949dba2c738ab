// softmax: out = exp(x - max x) / (sum of these), along the middle axis.  out, x [outer, length, inner]
// grid: outer * inner / columns workgroups
// work: outer * length * inner * 40 operations
// turns: 2 * length / shares of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "columns.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, x_at; };
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)
#define LOAD EACH(i) some[i] = NUMBER(x, 1, 0u, x_0 + place(k, i, end) * inner)

void main() {
    const uint column = column_of(inner), share = share_of(inner), end = column < outer * inner ? length : 0;
    const uint first = column / inner * length * inner + column % inner;
    const uint x_0 = FIRST_OF(1, x_at) + first, out_0 = FIRST_OF(0, out_at) + first;
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
            PUT_ALONE(out_, 0, out_0 + k * inner + i * (shares * inner), ieee_exp(some[i] - all.largest) / all.total)
    } AGAIN;
}
