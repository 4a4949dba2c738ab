// argmax: out[o, i] = the first k with the largest x[o, k, i], or with NaN if there is one
// out[outer, 1, inner], x[outer, length, inner]
// grid: outer * pieces * inner / columns workgroups
#version 440
#extension GL_GOOGLE_include_directive : require
#include "shares.glsl"
#include "numbers.glsl"
shared float tops[128];
shared uint places[128];

layout(push_constant) uniform Args { uint outer, length, inner, pieces, out_at, x_at; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
NUMBERS(1, readonly, X, x)

bool above(float a, float b) { return isnan(b) ? false : a > b || isnan(a); }

void main() {
    const uint element = column_of(inner), share = share_of(inner), column = column_in_group(inner);
    const uint i = element % inner, o = element / inner;
    const bool valid = o < outer;
    const uint x_0 = FIRST_OF(1, x_at) + o * length * inner + i, end = valid ? length : 0;
    uint place = share < end ? share : 0;
    float top = valid ? NUMBER(x, 1, 0u, x_0 + place * inner) : 0.0;
    for (uint k = share + shares; k < end; k += shares) {
        const float found = NUMBER(x, 1, 0u, x_0 + k * inner);
        if (above(found, top)) { top = found; place = k; }
    }
    if (shares > 1) {
        tops[share * COLUMNS + column] = top;
        places[share * COLUMNS + column] = place;
        barrier();
        for (uint s = 0; s < shares && s < end; s++) {
            const float found = tops[s * COLUMNS + column];
            const uint there = places[s * COLUMNS + column];
            if (above(found, top) || (!above(top, found) && there < place)) { top = found; place = there; }
        }
    }
    if (valid && share == 0) out_[out_at + element] = place;
}
