// norm_sums: for each piece of each row, dgamma = sum of g h and dbeta = sum of g, with h = (x - mean) / deviation
// dgamma, dbeta [rows, pieces], x, g [rows, length]; mean, variance per row or per column: one of the steps is 0
// grid: rows * pieces workgroups
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "rows.glsl"
#include "rate.glsl"

layout(push_constant) uniform Args {
    uint rows, length, pieces, chunk, row_step, column_step, dgamma_at, dbeta_at, x_at, g_at, mean_at, variance_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Dgamma_ { float dgamma[]; };
layout(set = 0, binding = 1) buffer Dbeta_ { float dbeta[]; };
NUMBERS(2, readonly, X, x)
NUMBERS(3, readonly, G, g)
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };

const uint SOME = 8;

float rate(uint s) { return rate_of(variance[variance_at + s], eps); }

void main() {
    const uint row = workgroup() / pieces, first = workgroup() % pieces * chunk, end = min(first + chunk, length);
    if (row >= rows) return;
    const uint x_0 = FIRST_OF(2, x_at) + row * length, g_0 = FIRST_OF(3, g_at) + row * length;
    float along = 0.0, sum = 0.0, centre = 0.0, of_row = 0.0;
    if (column_step == 0) {  // roots and divisions take a card longer than the loads
        centre = mean[mean_at + row * row_step];
        of_row = rate(row * row_step);
    }
    uint i = first + me();
    ROUNDS(i, end, SOME) {
        float values[SOME], slopes[SOME], centres[SOME], rates[SOME];
        EACH(c, SOME) {
            values[c] = NUMBER(x, 2, 0u, x_0 + i + c * 128);
            slopes[c] = NUMBER(g, 3, 0u, g_0 + i + c * 128);
            centres[c] = centre;
            rates[c] = of_row;
        }
        if (column_step != 0) EACH(c, SOME) {
            centres[c] = mean[mean_at + i + c * 128];
            rates[c] = rate(i + c * 128);
        }
        EACH(c, SOME) {
            along += slopes[c] * ((values[c] - centres[c]) * rates[c]);
            sum += slopes[c];
        }
    }
    REST(i, end) {
        if (column_step != 0) {
            centre = mean[mean_at + i];
            of_row = rate(i);
        }
        const float slope = NUMBER(g, 3, 0u, g_0 + i);
        along += slope * ((NUMBER(x, 2, 0u, x_0 + i) - centre) * of_row);
        sum += slope;
    }
    along = row_sum(0, along);
    sum = row_sum(1, sum);
    if (me() != 0) return;
    dgamma[dgamma_at + workgroup()] = along;
    dbeta[dbeta_at + workgroup()] = sum;
}
