// The places of a list of ids at which some words stand, in their order: a workgroup finds and lists them.  Used by
// scatter_add.comp, which has declared `length`, how many `words` a workgroup has, and WINDOW, how many places.
const uint LANES = 128, PLACES = 32 * LANES;  // places are looked at in blocks, a bit for each
const uint FOUR = 4;                          // loads that are under way at once
#define EACH(i, count) [[unroll]] for (uint i = 0; i < count; i++)
shared uint found[LANES];                     // the words' places in the block
shared uint count;                            // how many these are
shared uint outside;                          // whether an id is no word, as the workgroup of the first one sees
shared uint listed[LANES];                    // some of them, in their order: the place, and PLACES times the word

void look(uint block, uint end, uint word_0) {
    for (uint i = gl_LocalInvocationID.x; i < end; i += FOUR * LANES) {
        uint some[FOUR];
        EACH(c, FOUR) some[c] = id_at(block + min(i + c * LANES, end - 1)) - word_0;
        if (word_0 == 0) EACH(c, FOUR) if (some[c] >= length && some[c] != NOTHING) outside = 1;
        EACH(c, FOUR) {
            const uint at = i + c * LANES;
            if (at < end && some[c] < words) atomicOr(found[at / 32], 1u << at % 32);
        }
    }
}

// Those places of an invocation's bits that are in the window; `at` is where the first would be.
void list(uint bits, uint at, uint block, uint word_0) {
    if (at >= WINDOW && at + bitCount(bits) - 1 >= WINDOW) return;  // what is before the window is a large number
    for (; bits != 0; bits &= bits - 1) {
        const uint place = 32 * gl_LocalInvocationID.x + findLSB(bits);
        if (at < WINDOW) listed[at] = place + PLACES * (id_at(block + place) - word_0);
        at++;
    }
}
