// Lets one invocation of a launch change words of `state` that all others read: each workgroup takes a ticket after its
// reads, and who takes the last one knows that nobody will read again.  It must put the tickets back to 0.
// Include after the declaration of `state`.
bool is_last_reader(uint tickets_at) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x != 0) return false;
    const bool is_last = atomicAdd(state[tickets_at], 1) == gl_NumWorkGroups.x * gl_NumWorkGroups.y - 1;
    memoryBarrierBuffer();
    return is_last;
}
