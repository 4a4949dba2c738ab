// norm_sums: for each piece of each row, dgamma = sum of g h and dbeta = sum of g, with h = (x - mean) / deviation
// dgamma, dbeta [rows, pieces], x, g [rows, length]; mean, variance per row or per column: one of the steps is 0
// grid: rows * pieces workgroups
// floats: relaxed
#version 450
#extension GL_GOOGLE_include_directive : require
#include "rows.glsl"

layout(push_constant) uniform Args {
    uint rows, length, pieces, chunk, row_step, column_step, dgamma_at, dbeta_at, x_at, g_at, mean_at, variance_at;
    float eps;
};
layout(set = 0, binding = 0) buffer Dgamma_ { float dgamma[]; };
layout(set = 0, binding = 1) buffer Dbeta_ { float dbeta[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 3) readonly buffer G_ { float g[]; };
layout(set = 0, binding = 4) readonly buffer Mean_ { float mean[]; };
layout(set = 0, binding = 5) readonly buffer Variance_ { float variance[]; };

void main() {
    const uint row = workgroup() / pieces, first = workgroup() % pieces * chunk, end = min(first + chunk, length);
    if (row >= rows) return;
    float along = 0.0, sum = 0.0;
    for (uint i = first + me(); i < end; i += 128) {
        const uint s = row * row_step + i * column_step;
        const float slope = g[g_at + row * length + i], rate = 1.0 / sqrt(variance[variance_at + s] + eps);
        along += slope * ((x[x_at + row * length + i] - mean[mean_at + s]) * rate);
        sum += slope;
    }
    along = row_sum(0, along);
    sum = row_sum(1, sum);
    if (me() != 0) return;
    dgamma[dgamma_at + workgroup()] = along;
    dbeta[dbeta_at + workgroup()] = sum;
}
