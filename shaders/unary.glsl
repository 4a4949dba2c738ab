// out[i] = f(x[i]).  The kernel defines f after including this, and may define before:
// PARAMS, further push-constant members, and TYPE, the elements' type if they are no numbers.  Kernels of functions of
// one operand include it: those that kernels_build.py writes of functions.glsl, copy, pow, clamp, clip_factor.
#include "turns.glsl"
#ifndef PARAMS
#define PARAMS
#endif

layout(push_constant) uniform Args { uint n, out_at, x_at; PARAMS };
#ifdef TYPE
layout(set = 0, binding = 0) buffer Out_ { TYPE out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { TYPE x[]; };

TYPE f(TYPE x);

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i < n) out_[out_at + i] = f(x[x_at + i]);
    }
}
#else
#include "numbers.glsl"
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)

float f(float x);

void main() {
    uint word;
    for (uint turn = 0; turn < turns * IN_A_ROW(3u); turn++) {
        const uint i = PLACE(turn, 3u);
        if (i >= n) return;
        PUT(out_, 0, out_at, i, n, f(NUMBER(x, 1, x_at, i)), word)
    }
}
#endif
