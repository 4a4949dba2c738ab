// rms_norm_sums: for each piece of each row, dgamma = sum of g x rate, with rate = 1 / sqrt(square + eps) by column
// dgamma [rows, pieces]; x, g [rows, length]; square [1, length]
// grid: rows * pieces workgroups
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "rows.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint rows, length, pieces, chunk, dgamma_at, x_at, g_at, square_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Dgamma_ { float dgamma[]; };
NUMBERS(1, readonly, X, x)
NUMBERS(2, readonly, G, g)
layout(set = 0, binding = 3) readonly buffer Square_ { float square[]; };

const uint SOME = 8;

void main() {
    const uint row = workgroup() / pieces, first = workgroup() % pieces * chunk, end = min(first + chunk, length);
    if (row >= rows) return;
    const uint x_0 = FIRST_OF(1, x_at) + row * length, g_0 = FIRST_OF(2, g_at) + row * length;
    float along = 0.0;
    uint i = first + me();
    ROUNDS(i, end, SOME) {
        float values[SOME], slopes[SOME], rates[SOME];
        EACH(c, SOME) {
            values[c] = NUMBER(x, 1, 0u, x_0 + i + c * 128);
            slopes[c] = NUMBER(g, 2, 0u, g_0 + i + c * 128);
            rates[c] = rate_of(square[square_at + i + c * 128], eps);
        }
        EACH(c, SOME) along += slopes[c] * (values[c] * rates[c]);
    }
    REST(i, end)
        along += NUMBER(g, 2, 0u, g_0 + i) * (NUMBER(x, 1, 0u, x_0 + i) * rate_of(square[square_at + i], eps));
    along = row_sum(0, along);
    if (me() == 0) dgamma[dgamma_at + workgroup()] = along;
}
