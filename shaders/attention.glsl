// Attention in tiles of 64 x 32 weights that never leave their workgroup.  A workgroup has one sample (`item`), one
// head and a tile of rows, and walks over tiles of columns: rows are queries and columns keys, or the other way round.
// Tensors are [heads * features, time, batch], as users have them.  Include this after Args and the buffers; a kernel
// defines element() and put() for its operands.  Matrices that an invocation holds have a column per row of weights.
// A head has `d` features of queries and keys, `dv` of values.

// The default is the most, as the size of an array stays the default on Metal before MoltenVK 1.3.
layout(constant_id = 0) const uint blocks = 4;   // of 32 features: at least d and dv
layout(constant_id = 1) const uint dropped = 0;  // whether there is dropout

// For software drivers: Mesa 25's lavapipe compiles sums of products that are all unrolled for minutes.  Each turn of a
// loop counts, though: an older lavapipe ends all loops of an invocation, silently, after 65,535, of which the gradient
// takes up to 13 per column (_TURNS_PER_COLUMN in ag/engine/backends/vulkan/pipelines.py).
#ifdef FIXED
#define ROLLED [[dont_unroll]]
#else
#define ROLLED
#endif

const uint ROWS = 64, COLUMNS = 32, DEPTH = 16, PITCH = ROWS / 4 + 1;
shared vec4 slices[2 * DEPTH * PITCH];  // of the features of two tiles, or of one
shared vec4 weights[COLUMNS * PITCH];   // [column][row]; at the end [feature][row], of 32 features

uint head, item;

float element(uint operand, uint f, uint t);  // 0 behind the end
void put(uint operand, uint f, uint t, float value);

uint place(uint features, uint times, uint f, uint t) { return ((head * features + f) * times + t) * batch + item; }
bool visible(uint query, uint k) { return query < queries && k < keys && (causal == 0 || k <= query); }

// An invocation has the weights of 4 neighbouring rows and columns.
uint row() { return gl_LocalInvocationID.x / 8 * 4; }
uint column() { return gl_LocalInvocationID.x % 8 * 4; }

// The products of the feature vectors of rows and columns.
mat4 products(uint rows, uint row_0, uint columns, uint column_0, uint features) {
    mat4 sums = mat4(0.0);
    for (uint f_0 = 0; f_0 < features; f_0 += DEPTH) {
        for (uint e = gl_LocalInvocationID.x; e < DEPTH * COLUMNS; e += 128) {
            const uint f = e / COLUMNS, t = e % COLUMNS, to = f * PITCH + t / 4, next = to + COLUMNS / 4;
            slices[to][t % 4] = element(rows, f_0 + f, row_0 + t);
            slices[next][t % 4] = element(rows, f_0 + f, row_0 + t + COLUMNS);
            slices[DEPTH * PITCH + to][t % 4] = element(columns, f_0 + f, column_0 + t);
        }
        barrier();
        ROLLED for (uint f = 0; f < DEPTH; f += 4) {
            for (uint i = 0; i < 4; i++) {
                const uint at = (f + i) * PITCH;
                sums += outerProduct(slices[DEPTH * PITCH + at + column() / 4], slices[at + row() / 4]);
            }
        }
        barrier();
    }
    return sums;
}

// Lets all invocations see a tile of weights; accumulate() waits for them.
void share(mat4 w) {
    const mat4 turned = transpose(w);
    for (uint j = 0; j < 4; j++) weights[(column() + j) * PITCH + row() / 4] = turned[j];
}
#include "attention_sums.glsl"
#include "attention_dropout.glsl"
