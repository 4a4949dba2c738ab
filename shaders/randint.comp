// randint: out[i] = low + the upper half of count times the i-th word of the stream in `key`
// grid: n / 4 invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TYPE int
#define PARAMS int low; uint count;
#include "draws.glsl"

int f(uint bits) {
    uint upper, lower;
    umulExtended(bits, count, upper, lower);
    return low + int(upper);
}
