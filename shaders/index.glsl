// One-dimensional grids: which workgroup, which invocation.  A grid of more than 65,535 workgroups comes folded into
// two dimensions, so the last ones may lie behind the end: every kernel checks its index.
#ifdef THREADS_ID
layout(local_size_x_id = THREADS_ID) in;
#else
layout(local_size_x = 128) in;
#endif

uint workgroup() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
uint invocation() { return workgroup() * gl_WorkGroupSize.x + gl_LocalInvocationID.x; }
