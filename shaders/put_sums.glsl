// What an invocation has made goes to put, quad by quad; `top` and `left` are where the first lies.
#ifdef CHAIN
// A chain is long, so the loop is not unrolled; but what a loop picks from an array would not be in registers.
#define EACH_SUM for (uint s = 0; s < SUMS; s++)
vec4 picked(uint s) {
    vec4 found = sums[0];
    [[unroll]] for (uint other = 1; other < SUMS; other++)
        if (other == s) found = sums[other];
    return found;
}
#else
#define EACH_SUM [[unroll]] for (uint s = 0; s < SUMS; s++)
#define picked(s) sums[s]
#endif

void put_sums(uint top, uint left) {
    EACH_SUM {
        const uint i = s / QUADS, j = s % QUADS;
        put(top + i / 4 * HIGH * 4 + i % 4, left + j * WIDE * 4, picked(s));
    }
}
