// Which parameter an element of the flat buffer is of, and that parameter's counts c = 1 - beta^t.  Used by
// adam_update.comp alone; include after the declaration of `state` and `places`.
float counted(uint word, float rate) {
    precise float c = uintBitsToFloat(state[word]);
    c += rate * (1.0 - c);
    return c;
}

// Which parameter an element is of.
uint slot_of(uint element) {
    const uint ends = places_at + 1;
    uint slot = places[ends + places[places_at] + element / 64];
    while (element >= places[ends + slot]) slot++;
    return slot;
}

// Most workgroups have elements of one parameter.  One invocation reads its counts for all, as reads of what others
// write go past the caches, and a million of the same word are slower than all the rest.
shared float counts_here[2];
uint slot_here;
bool only_here;

void look_up(float rate1, float rate2) {
    const uint begin = workgroup() * turns * gl_WorkGroupSize.x;
    slot_here = slot_of(start + min(begin, n - 1));
    only_here = start + begin + turns * gl_WorkGroupSize.x <= places[places_at + 1 + slot_here];
    if (gl_LocalInvocationID.x == 0) {
        counts_here[0] = counted(state_at + 4 + 3 * slot_here, rate1);
        counts_here[1] = counted(state_at + 5 + 3 * slot_here, rate2);
    }
    barrier();
}
