// Lets one workgroup of a launch change words of `state` that all others read: each takes a ticket after its reads, and
// who takes the last one knows that nobody will read again.  It must put the tickets back to 0.
// A launch may be made in parts, so the caller says how many workgroups there are; those behind them, which a folded
// grid has, take no ticket.
// Include after the declaration of `state`; call it where all invocations do.
shared bool last_here;

bool is_last_reader(uint tickets_at, uint groups) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0)
        last_here = workgroup() < groups && atomicAdd(state[tickets_at], 1) == groups - 1;
    barrier();
    memoryBarrierBuffer();
    return last_here;
}
