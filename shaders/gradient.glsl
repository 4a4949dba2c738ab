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
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer JOIN(SAVED, _) { float SAVED[]; };
layout(set = 0, binding = 2) readonly buffer G_ { float g[]; };

float f(float v, float g);

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i < n) out_[out_at + i] = f(SAVED[JOIN(SAVED, _at) + i], g[g_at + i]);
    }
}
