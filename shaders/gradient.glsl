// out[i] = f(v[i], g[i]): the cotangent g carried back through a unary kernel, where v is the value that the kernel
// defines as SAVED before including this (its input x or its output y).  PARAMS and f as in unary.glsl.  Kernels:
// pow_grad, clamp_grad, and those that kernels_build.py writes of functions.glsl.
#include "turns.glsl"
#ifndef PARAMS
#define PARAMS
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

layout(push_constant) uniform Args { uint n, out_at, JOIN(SAVED, _at), g_at; PARAMS };
#include "numbers.glsl"
NUMBERS(0, , Out, out_)
layout(set = 0, binding = 1) readonly buffer JOIN(SAVED, _) { float SAVED[]; };
layout(set = 0, binding = 1) readonly buffer JOIN(SAVED, Halves_) { uint saved_halves[]; };
NUMBERS(2, readonly, G, g)

float f(float v, float g);

void main() {
    uint word;
    for (uint turn = 0; turn < turns * IN_A_ROW(3u); turn++) {
        const uint i = PLACE(turn, 3u), at = JOIN(SAVED, _at);
        if (i >= n) return;
        const float v = TYPE_OF(1) == 0u ? SAVED[at + i] : wide(saved_halves[at + i / 2u], i, TYPE_OF(1));
        PUT(out_, 0, out_at, i, n, f(v, NUMBER(g, 2, g_at, i)), word)
    }
}
