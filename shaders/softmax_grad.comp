// softmax_grad: out = y (g - sum(y g)), along the middle axis.  out, y, g [outer, length, inner]
// grid: outer * inner / columns workgroups
// turns: 2 * length / shares of an invocation's loops
#version 440
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define MOST 16
#include "columns.glsl"

layout(push_constant) uniform Args { uint outer, length, inner, out_at, y_at, g_at; };
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, Y, y)
NUMBERS(2, readonly, G, g)
#define LOAD EACH(i) { \
    const uint at = place(k, i, end) * inner; \
    ys[i] = NUMBER(y, 1, 0u, y_0 + at); \
    gs[i] = NUMBER(g, 2, 0u, g_0 + at); \
}

void main() {
    const uint column = column_of(inner), share = share_of(inner), end = column < outer * inner ? length : 0;
    const uint first = column / inner * length * inner + column % inner;
    const uint y_0 = FIRST_OF(1, y_at) + first, g_0 = FIRST_OF(2, g_at) + first, out_0 = FIRST_OF(0, out_at) + first;
    float ys[loads], gs[loads], mine = 0.0;
    {
        PASS {
            LOAD
            float part = 0.0;
            EACH(i) part += within(k, i, end) ? ys[i] * gs[i] : 0.0;
            mine += part;
        } AGAIN;
    }
    const float total = column_sum(0, mine, inner);
    PASS {
        if (whole == 0) LOAD
        EACH(i) if (within(k, i, end))
            PUT_ALONE(out_, 0, out_0 + k * inner + i * (shares * inner), ys[i] * (gs[i] - total))
    } AGAIN;
}
