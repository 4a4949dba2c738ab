// What launches of optimizers share; include after the declarations of `p`, `g` and `state`.  Operand STORED is
// the parameters of 16 bits, while p has all their digits; it is not looked at where they are float32.
#include "numbers.glsl"
#include "ticket.glsl"
#include "scaled_gradient.glsl"
NUMBERS(STORED, , Stored, stored)

#define OF_STORED 3u << 2 * STORED
#define ROW IN_A_ROW(OF_STORED)  // elements that an invocation takes: two share a word

// p[i], or what is stored there if p does not round to it: somebody changed that.
float master(uint i) {
    if (TYPE_OF(STORED) == 0u) return p[p_at + i];
    const uint held = storedhalves[stored_at + i / 2u], mask = 0xFFFFu << 16 * (i & 1u);
    return narrow(p[p_at + i], i, TYPE_OF(STORED)) == (held & mask) ? p[p_at + i] : wide(held, i, TYPE_OF(STORED));
}

#define KEEP(i, value, word) \
    p[p_at + i] = value; \
    if (TYPE_OF(STORED) != 0u) { PUT(stored, STORED, stored_at, i, n, value, word) }
