// nonfinite: out[k] = how many elements of piece k of x times factor are infinite or NaN
// out[pieces], x[n], factor[1]; a piece is chunk long, the last may be shorter
// grid: pieces / 8 workgroups
#version 440
#extension GL_GOOGLE_include_directive : require
#include "reduce.glsl"

layout(push_constant) uniform Args { uint n, pieces, chunk, out_at, x_at, factor_at; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 2) readonly buffer Factor_ { float factor[]; };

const uint EXPONENT = 0x7F800000u;

void main() {
    const uint piece = column_of(1), share = share_of(1);
    const bool valid = piece < pieces;
    const uint end = valid ? min((piece + 1) * chunk, n) : 0;
    uint count = 0;
    for (uint i = piece * chunk + share; i < end; i += shares) {
        const float scaled = x[x_at + i] * factor[factor_at];
        count += uint((floatBitsToUint(scaled) & EXPONENT) == EXPONENT);
    }
    const float total = column_sum(0, float(count), 1);
    if (valid && share == 0) out_[out_at + piece] = total;
}
