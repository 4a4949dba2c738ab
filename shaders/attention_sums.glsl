// Sums of feature vectors, weighted with the weights that a workgroup shares: one vector per row.  An invocation has
// 4 features of each block for 4 rows.  Loops over blocks must be unrolled on a GPU, for sums to stay in registers;
// their end is not known before a pipeline is made.

void clear(out mat4 sums[blocks]) {
    [[unroll]] for (uint b = 0; b < blocks; b++) sums[b] = mat4(0.0);
}

void accumulate(inout mat4 sums[blocks], uint operand, uint column_0, uint features) {
    [[unroll]] for (uint b = 0; b < blocks; b++) if (32 * b < features) {
        for (uint c_0 = 0; c_0 < COLUMNS; c_0 += DEPTH) {
            for (uint e = gl_LocalInvocationID.x; e < DEPTH * 32; e += 128) {
                const uint t = e % DEPTH, f = e / DEPTH, to = t * PITCH + f / 4;
                slices[to][f % 4] = element(operand, 32 * b + f, column_0 + c_0 + t);
            }
            barrier();
            ROLLED for (uint c = 0; c < DEPTH; c += 4) {
                for (uint i = 0; i < 4; i++) {
                    const uint at = (c + i) * PITCH + gl_LocalInvocationID.x % 8;
                    const vec4 w = weights[(c_0 + c + i) * PITCH + row() / 4];
                    sums[b] += outerProduct(slices[at], w);
                }
            }
            barrier();
        }
    }
}

// Writes the sums; through shared memory, so that neighbours write neighbouring words.
void store(mat4 sums[blocks], uint operand, uint row_0, uint features) {
    [[unroll]] for (uint b = 0; b < blocks; b++) if (32 * b < features) {
        const mat4 turned = transpose(sums[b]);
        barrier();
        for (uint j = 0; j < 4; j++) weights[(column() + j) * PITCH + row() / 4] = turned[j];
        barrier();
        for (uint e = gl_LocalInvocationID.x; e < 32 * ROWS; e += 128) {
            const uint f = e / ROWS, t = e % ROWS;
            put(operand, 32 * b + f, row_0 + t, weights[f * PITCH + t / 4][t % 4]);
        }
    }
}
