// Tiles of a product of matrices: which one a workgroup makes, and how large slices of the operands are.  Used by
// product.glsl and cooperative.glsl.  The sizes are specialization constants, of which
// ag/engine/backends/shader/tiles.py and vulkan/cooperative.py have the values.
#define TILES
#ifdef FIXED  // for software drivers: sizes known to the compiler, which so can unroll what uses them most
#define SIZE(id) const uint
#define UNROLL_LOADS
layout(local_size_x = 64) in;
#else
#define SIZE(id) layout(constant_id = id) const uint
#define UNROLL_LOADS [[unroll]]
layout(local_size_x_id = 0) in;
#endif
SIZE(0) THREADS = 64;
SIZE(1) TILE_ROWS = 32;
SIZE(2) TILE_COLS = 32;
SIZE(3) DEPTH = 32;
SIZE(4) DOWN = 4;
SIZE(5) ACROSS = 4;
SIZE(6) SHARES = 1;
layout(constant_id = 7) const uint vector = 0;  // whether quads are aligned, and wholly inside or outside

const uint WIDE = TILE_COLS / ACROSS, HIGH = TILE_ROWS / DOWN, LANES = WIDE * HIGH;
const uint A_QUADS = TILE_ROWS * DEPTH / 4 / THREADS, B_QUADS = TILE_COLS * DEPTH / 4 / THREADS;
const uint A_PITCH = TILE_ROWS / 4 + 1, B_PITCH = TILE_COLS / 4 + 1;  // a quad more spreads columns over the banks
const uint B_AT = DEPTH * A_PITCH;
#ifndef COOPERATIVE
shared vec4 slice[DEPTH * (A_PITCH + B_PITCH)];
#endif

// Tiles are numbered in bands, so that those that run together use the same parts of A and B: 8 rows of tiles, one
// column after the other.  A grid that is too long for one axis comes folded, with workgroups behind the end.
const uint BAND = 8;
uvec3 tile() {
    const uint wide = (cols + TILE_COLS - 1) / TILE_COLS, high = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const uvec3 n = gl_NumWorkGroups, at = gl_WorkGroupID;
    const uint group = (at.z * n.y + at.y) * n.x + at.x, i = group % (wide * high), top = i / (BAND * wide) * BAND;
    const uint band = min(BAND, high - top), in_band = i - top * wide;
    return uvec3((top + in_band % band) * TILE_ROWS, in_band / band * TILE_COLS, group / (wide * high));
}
