// Which parameter an element of the flat buffer is of, and that parameter's counts c = 1 - beta^t.  Used by
// adam_update.comp alone; include after the declaration of `state` and `places`.
uint counts_at(uint slot) { return state_at + 4 + 3 * slot; }

float counted(uint word, float rate) {
    precise float c = uintBitsToFloat(state[word]);
    c += rate * (1.0 - c);
    return c;
}

void advance(uint word, float rate1, float rate2) {
    state[word] = floatBitsToUint(counted(word, rate1));
    state[word + 1] = floatBitsToUint(counted(word + 1, rate2));
    state[word + 2] = floatBitsToUint(uintBitsToFloat(state[word + 2]) + 1.0);
}

// Which parameter an element is of.
uint slot_of(uint element) {
    const uint ends = places_at + 1;
    uint slot = places[ends + places[places_at] + element / 64];
    while (element >= places[ends + slot]) slot++;
    return slot;
}

// That of the workgroup's first element, which is often that of all.
uint first_slot() { return slot_of(start + min(workgroup() * turns * gl_WorkGroupSize.x * ROW, n - 1)); }

// One invocation reads the counts of a parameter for all, as reads of what others write go past the caches, and a
// million of the same word are slower than all the rest.
shared float counts_here[2];

void publish_counts(uint slot, float rate1, float rate2) {
    if (gl_LocalInvocationID.x == 0) {
        counts_here[0] = counted(counts_at(slot), rate1);
        counts_here[1] = counted(counts_at(slot) + 1, rate2);
    }
    barrier();
}
