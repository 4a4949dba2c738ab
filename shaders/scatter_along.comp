// scatter_along: out[o, ids[o, p, i], i] and x[o, p, i] become one, for p from first to last, in this order
// out[outer, length, inner], x[outer, places, inner], ids[outer, places, inner]
// how: 0 adds, 1 multiplies, 2 and 3 keep the larger and the smaller, 4 puts x there.  An invocation has a column, so
// the order is fixed without atomics.  With `wraps` a negative id counts from the end.  An id that is no place, but
// 0x80000000, leaves NaN at the first one.
// grid: outer * inner invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "ieee.glsl"
#define TYPES 0
#include "numbers.glsl"

layout(push_constant) uniform Args {
    uint outer, length, inner, places, first, last, how, wraps, out_at, x_at, ids_at;
};
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
NUMBERS(1, readonly, X, x)
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };
#include "ids.glsl"
const uint NAN_WORD = 0x7fc00000u;

float joined(float a, float b) {
    precise float r = how == 0u ? a + b : a * b;
    if (how >= 2u) r = isnan(a) || (!isnan(b) && (how == 2u ? a >= b : a <= b)) ? a : b;
    return r;
}

void main() {
    const uint n = invocation(), i = n % inner, o = n / inner;
    if (o >= outer) return;
    bool outside = false;
    for (uint p = first; p < last; p++) {
        const uint from = (o * places + p) * inner + i, id = id_at(from);
        if (id >= length) {
            outside = outside || id != NOTHING;
            continue;
        }
        const uint to = out_at + (o * length + id) * inner + i;
        const uint word = TYPE_OF(1) == 0u ? xhalves[x_at + from] : floatBitsToUint(NUMBER(x, 1, x_at, from));
        out_[to] = how == 4u ? word : floatBitsToUint(joined(uintBitsToFloat(out_[to]), uintBitsToFloat(word)));
    }
    if (outside && length > 0u) out_[out_at + o * length * inner + i] = NAN_WORD;
}
