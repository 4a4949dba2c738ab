// joined_statistics: mean and variance of rows whose pieces' are known; mean, variance [rows, 1], means, variances
// [rows, pieces]; a row is length long and its pieces chunk, the last may be shorter
// grid: rows invocations
// floats: relaxed
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(push_constant) uniform Args {
    uint rows, pieces, length, chunk, mean_at, variance_at, means_at, variances_at;
};
layout(set = 0, binding = 0) buffer Mean_ { float mean[]; };
layout(set = 0, binding = 1) buffer Variance_ { float variance[]; };
layout(set = 0, binding = 2) readonly buffer Means_ { float means[]; };
layout(set = 0, binding = 3) readonly buffer Variances_ { float variances[]; };

float share(uint p) { return float(min(chunk, length - p * chunk)) / float(length); }

void main() {
    const uint row = invocation(), first = row * pieces;
    if (row >= rows) return;
    float centre = 0.0, spread = 0.0;
    for (uint p = 0; p < pieces; p++) centre += share(p) * means[means_at + first + p];
    for (uint p = 0; p < pieces; p++) {
        const float apart = means[means_at + first + p] - centre;
        spread += share(p) * (variances[variances_at + first + p] + apart * apart);
    }
    mean[mean_at + row] = centre;
    variance[variance_at + row] = spread;
}
