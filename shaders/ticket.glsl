// Lets one workgroup of a launch change words of `state` that all others read: each takes a ticket after its reads, and
// who takes the last one knows that nobody will read again.  It must put the tickets back to 0.
// Include after the declaration of `state`; call it where all invocations do.
shared bool last_here;

bool is_last_reader(uint tickets_at) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0)
        last_here = atomicAdd(state[tickets_at], 1) == gl_NumWorkGroups.x * gl_NumWorkGroups.y - 1;
    barrier();
    memoryBarrierBuffer();
    return last_here;
}
