// Moves element j of x to element i of `to`, words or halves of them as integers.  Others may set a word's other half.
#define TYPES 0
#include "numbers.glsl"
#define MOVE_ALONE(to, to_at, i, x, x_at, j) \
    if (TYPE_OF(0) == 0u) to##halves[(to_at) + (i)] = x##halves[(x_at) + (j)]; \
    else { \
        const uint right = 16u * ((i) & 1u), place = (to_at) + (i) / 2u; \
        const uint moved = x##halves[(x_at) + (j) / 2u] >> 16u * ((j) & 1u) & 0xFFFFu; \
        atomicXor(to##halves[place], moved << right ^ to##halves[place] & 0xFFFFu << right); \
    }
