// Words, or halves of them, that are moved as integers from x, operand 1, to the result, operand 0.  An invocation
// makes a word of the result: the kernel's `from` says where in x its element n is, or STAYS_0 or NO_PLACE.
#include "index.glsl"
#define TYPES 0
#include "numbers.glsl"
NUMBERS(0, , Out, out_)
NUMBERS(1, readonly, X, x)

const uint STAYS_0 = 0xFFFFFFFFu, NO_PLACE = 0xFFFFFFFEu;  // 0, and NaN
const uint NANS[3] = uint[](0x7FC00000u, 0x7FC0u, 0x7E00u);

uint from(uint n);

void move_to(uint out_at, uint x_at, uint count) {
    const uint type = TYPE_OF(0), each = type == 0u ? 1u : 2u, first = invocation() * each;
    uint word = 0u;
    for (uint n = first; n < min(first + each, count); n++) {
        const uint place = from(n);
        uint moved = place == NO_PLACE ? NANS[type] : 0u;
        if (place < NO_PLACE) moved = xhalves[x_at + place / each];
        if (place < NO_PLACE && type != 0u) moved = moved >> 16u * (place & 1u) & 0xFFFFu;
        word |= moved << 16u * (n - first);
    }
    if (first < count) out_halves[out_at + first / each] = word;
}
