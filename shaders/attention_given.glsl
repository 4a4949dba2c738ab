// What attention, and with GRADIENT its gradients, are given, from binding GIVEN on.  Most may have 16 bits.
#define TYPES 4
#include "numbers.glsl"
NUMBERS(GIVEN, readonly, Q, q)
QUADS(GIVEN, readonly, Q, q)
NUMBERS(GIVEN + 1, readonly, K, k)
QUADS(GIVEN + 1, readonly, K, k)
NUMBERS(GIVEN + 2, readonly, V, v)
QUADS(GIVEN + 2, readonly, V, v)
#ifdef GRADIENT
NUMBERS(GIVEN + 3, readonly, G, g)
QUADS(GIVEN + 3, readonly, G, g)
layout(set = 0, binding = GIVEN + 4) readonly buffer Lse_ { float lse[]; };
layout(set = 0, binding = GIVEN + 5) readonly buffer Delta_ { float delta[]; };
layout(set = 0, binding = GIVEN + 6) readonly buffer Key_ { uint key[]; };
#endif
