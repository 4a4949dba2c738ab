// norm_statistics: mean and variance of each piece of each row; mean, variance [rows, pieces], x [rows, length]
// A piece is chunk long, the last may be shorter.  A large mean costs no digits: the first element is taken off before
// anything is added up, and parts are joined by the distance of their means.
// grid: rows * pieces workgroups
// floats: relaxed
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "rows.glsl"

layout(push_constant) uniform Args { uint rows, length, pieces, chunk, mean_at, variance_at, x_at; };
layout(set = 0, binding = 0) buffer Mean_ { float mean[]; };
layout(set = 0, binding = 1) buffer Variance_ { float variance[]; };
NUMBERS(2, readonly, X, x)

const uint SOME = 16;

void main() {
    const uint row = workgroup() / pieces, first = workgroup() % pieces * chunk, end = min(first + chunk, length);
    if (row >= rows) return;
    const uint x_0 = FIRST_OF(2, x_at) + row * length;
    const float origin = first < end ? NUMBER(x, 2, 0u, x_0 + first) : 0.0;
    float count = 0.0, centre = 0.0, apart = 0.0;  // of this invocation's elements so far
    uint i = first + me();
    ROUNDS(i, end, SOME) {
        float some[SOME], sum = 0.0, off = 0.0;
        EACH(c, SOME) some[c] = NUMBER(x, 2, 0u, x_0 + i + c * 128) - origin;
        EACH(c, SOME) sum += some[c];
        const float middle = sum / SOME, step = middle - centre, all = count + SOME;
        EACH(c, SOME) off += (some[c] - middle) * (some[c] - middle);
        centre += step * (SOME / all);
        apart += off + step * (count * (SOME / all)) * step;
        count = all;
    }
    REST(i, end) {
        const float step = NUMBER(x, 2, 0u, x_0 + i) - origin - centre;
        count += 1.0;
        centre += step / count;
        apart += step * ((count - 1.0) / count) * step;
    }
    const float size = float(end - first), whole = row_sum(0, centre * count) / size, step = centre - whole;
    const float spread = row_sum(1, apart + step * count * step) / size;
    if (me() != 0) return;
    mean[mean_at + workgroup()] = origin + whole;
    variance[variance_at + workgroup()] = spread;
}
