// gather_rows: out[f, p] = number f of row ids[p] of a packed table (packed.glsl)
// out[features, places]; the table, [length, features], in words; ids[places]: 0x80000000 gives 0, others that are no
// row give NaN
// grid: features / 4 * places invocations
#version 440
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(constant_id = 0) const uint type = 0;
layout(push_constant) uniform Args { uint length, features, places, out_at, words_at, ids_at, planes[3]; };
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer Words_ { uint words[]; };
layout(set = 0, binding = 2) readonly buffer Ids_ { uint ids[]; };
#include "packed.glsl"

void main() {
    const uint n = invocation(), p = n % places, f = n / places * 4;
    if (f >= features) return;
    const uint id = ids[ids_at + p], count = min(features - f, 4);
    const vec4 found = numbers_at(id < length ? id * features + f : 0, id < length ? count : 0);
    const bool known = id < length || id == 0x80000000u;
    for (uint c = 0; c < count; c++)
        out_[out_at + (f + c) * places + p] = known ? floatBitsToUint(found[c]) : 0x7FC00000u;
}
