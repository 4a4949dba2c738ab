// Attention in tiles of 64 x 32 weights that never leave their workgroup.  A workgroup has one sample (`item`), one
// head and a tile of rows, and walks over tiles of columns: rows are queries and columns keys, or the other way round.
// Tensors are [heads * features, time, batch], as users have them.  Include this after Args and the buffers; a kernel
// defines element() and put(), quad() and put_quad() for its operands.  Matrices that an invocation holds have a column
// per row of weights.  A head has `d` features of queries and keys, `dv` of values.

// The default is the most, as the size of an array stays the default on Metal before MoltenVK 1.3.
layout(constant_id = 0) const uint blocks = 4;   // of 32 features: at least d and dv
layout(constant_id = 1) const uint dropped = 0;  // whether there is dropout
// The first operands of products() stay in shared memory while a workgroup walks: as many as it has room for
// (Tiles.held in ag/engine/backends/shader/tiles.py).  The others are loaded again for each tile.
layout(constant_id = 2) const uint held = 0;
layout(constant_id = 3) const uint vector = 0;   // whether four neighbouring times are a quad

// For software drivers: Mesa 25's lavapipe compiles for minutes what is all unrolled, sums of products and loads.  Each
// turn of a loop counts, though: an older lavapipe ends all loops of an invocation, silently, after 65,535, of which
// the gradient takes up to 13 per column (_TURNS_PER_COLUMN in ag/engine/backends/vulkan/pipelines.py).
#ifdef FIXED
#define ROLLED [[dont_unroll]]
#define LEFT [[dont_unroll]]
const uint TOGETHER = 2;  // words that an invocation loads in a turn
#else
#define ROLLED [[unroll]]
#define LEFT  // to the driver
const uint TOGETHER = 4;
#endif

const uint ROWS = 64, COLUMNS = 32, DEPTH = 16, THREADS = 128;
// Features of two tiles, [feature][column] and [feature][row], or of one; then [feature][row] of what is held.
const uint BEHIND = DEPTH * (ROWS + COLUMNS) / 4;
shared vec4 slices[BEHIND + held * blocks * 32 * ROWS / 4];

uint head, item;

// Of an operand: a feature at a time, or at four times beginning with a multiple of 4; 0 behind the end.
float element(uint operand, uint f, uint t);
vec4 quad(uint operand, uint f, uint t);
void put(uint operand, uint f, uint t, float value);
void put_quad(uint operand, uint f, uint t, vec4 values);

#ifdef TERMS
#include "attention_terms.glsl"
#else
#define enter(h) head = h
#define q_head head
#define kv_head head
#define bend(product) factor
const uint feature_0 = 0;
uint place(uint h, uint features, uint times, uint f, uint t) {
    return ((h * features + f) * times + t) * batch + item;
}
bool visible(uint query, uint k) { return query < queries && k < keys && (causal == 0 || k <= query); }
float score(uint query, uint k, float product) { return visible(query, k) ? factor * product : -INFINITY; }
uint first_key(uint query_0) { return 0; }
uint end_key(uint query_0) { return causal != 0 ? min(keys, query_0 + ROWS) : keys; }
uint first_query(uint key_0) { return causal != 0 ? key_0 : 0; }
uint end_query(uint key_0) { return queries; }
#endif

// An invocation has the weights of 4 neighbouring rows and columns.
uint row() { return gl_LocalInvocationID.x / 8 * 4; }
uint column() { return gl_LocalInvocationID.x % 8 * 4; }

#include "attention_products.glsl"

#include "attention_dropout.glsl"
