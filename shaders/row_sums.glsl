// With ROW_SUMS, the sums of the rows of A beside a product: each invocation adds up a row of the slices that its
// workgroup has in shared memory.  A tile has no more rows than invocations.
#ifdef ROW_SUMS
float row_sum = 0.0;

void add_up_rows() {
    const uint row = gl_LocalInvocationID.x;
    if (row >= TILE_ROWS) return;
    float of_slice = 0.0;
    for (uint k = 0; k < DEPTH; k++) of_slice += slice[k * A_PITCH + row / 4][row % 4];
    row_sum += of_slice;
}

void put_row_sums(uint top) {
    const uint row = gl_LocalInvocationID.x;
    if (row < TILE_ROWS && top + row < rows) row_sums[row_sums_at + top + row] = row_sum;
}
#else
void add_up_rows() {}
void put_row_sums(uint top) {}
#endif
