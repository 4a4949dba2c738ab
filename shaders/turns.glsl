// Grids of one dimension in which an invocation takes several elements in turn: a workgroup has `turns` times as many
// elements as invocations, and in each turn neighbours take neighbouring ones.  With 128 invocations and 2 turns,
// workgroup 1 takes the elements 256 to 383, and then 384 to 511.  A card starts about one workgroup per nanosecond, so
// those of one turn would leave its memory idle (ag/engine/backends/shader/tiles.py chooses).
// A kernel with other specialization constants defines TURNS, the number of this one, before.
#include "index.glsl"
#ifndef TURNS
#define TURNS 0
#endif
layout(constant_id = TURNS) const uint turns = 1;

uint element(uint turn) {
    return (workgroup() * turns + turn) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
}

// Workgroups that have elements.
uint groups_of(uint elements) {
    const uint each = turns * gl_WorkGroupSize.x;
    return (elements + each - 1) / each;
}
