// Sums of feature vectors, weighted with the weights that a workgroup shares: one vector per row.  An invocation has
// 4 features of each block, 8 apart, for 4 rows.  Loops over blocks must be unrolled on a GPU, for sums to stay in
// registers; their end is not known before a pipeline is made.

shared vec4 weights[COLUMNS * ROWS / 4];  // [column][row] as spot() has it; at the end [feature][row]

// Where 4 neighbouring rows of weights are, by their number / 4: in another bank for each invocation of row().
uint spot(uint c, uint rows) { return c * (ROWS / 4) + (rows ^ c / 4 % 8); }

// Lets all invocations see a tile of weights; accumulate() waits for them.
void share(mat4 w) {
    const mat4 turned = transpose(w);
    for (uint j = 0; j < 4; j++) weights[spot(column() + j, row() / 4)] = turned[j];
}

void clear(out mat4 sums[blocks]) {
    [[unroll]] for (uint b = 0; b < blocks; b++) sums[b] = mat4(0.0);
}

// Adds the products of 4 columns of weights and of features, which begin at a quad of `slices`.
void add(inout mat4 sum, mat4 w, uint at, uint pitch) {
    mat4 x;
    for (uint i = 0; i < 4; i++) x[i] = slices[at + (gl_LocalInvocationID.x % 8 + 8 * i) * pitch];
    x = transpose(x);
    for (uint i = 0; i < 4; i++) sum += outerProduct(x[i], w[i]);
}

// Two blocks, or the only one, of as many columns as `slices` have room for: weights are read once for both.  Quads of
// a feature are an odd number apart, in other banks than those of its neighbours.
void accumulate_pair(inout mat4 sums[blocks], uint b, uint operand, uint column_0) {
    const uint wide = blocks > 1 ? COLUMNS / 2 : COLUMNS, pitch = wide / 4 + 1, next = b + 1 < blocks ? b + 1 : b;
    LEFT for (uint c_0 = 0; c_0 < COLUMNS; c_0 += wide) {
        copy(0, pitch, operand, feature_0 + 32 * b, next > b ? 64 : 32, column_0 + c_0, wide);
        barrier();
        const uint first = spot(c_0, row() / 4);
        ROLLED for (uint c = 0; c < wide; c += 4) {
            const uint at = c * (ROWS / 4) + (first ^ c / 4);  // spot(c_0 + c, ...), with less to compute
            mat4 w;
            for (uint i = 0; i < 4; i++) w[i] = weights[at + i * (ROWS / 4)];
            add(sums[b], w, c / 4, pitch);
            if (next > b) add(sums[next], w, c / 4 + 32 * pitch, pitch);
        }
        barrier();
    }
}

// No loop over pairs: some drivers do not see the end of one that turns once.
void accumulate(inout mat4 sums[blocks], uint operand, uint column_0, uint features) {
    accumulate_pair(sums, 0, operand, column_0);
    if (blocks > 2 && features > feature_0 + 64) accumulate_pair(sums, blocks > 2 ? 2 : 0, operand, column_0);
}

// Writes the sums; through shared memory, so that neighbours write neighbouring words.
void store(mat4 sums[blocks], uint operand, uint row_0, uint features) {
    const uint me = gl_LocalInvocationID.x;
    [[unroll]] for (uint b = 0; b < blocks; b++) if (feature_0 + 32 * b < features) {
        const mat4 turned = transpose(sums[b]);
        barrier();
        for (uint i = 0; i < 4; i++) weights[spot(me % 8 + 8 * i, row() / 4)] = turned[i];
        barrier();
        if (vector != 0) {
            LEFT for (uint e = me; e < 32 * ROWS / 4; e += THREADS) {
                const uint f = e / (ROWS / 4), t = e % (ROWS / 4);
                put_quad(operand, feature_0 + 32 * b + f, row_0 + 4 * t, weights[spot(f, t)]);
            }
        } else {
            LEFT for (uint e = me; e < 32 * ROWS; e += THREADS) {
                const uint f = e / ROWS, t = e % ROWS;
                put(operand, feature_0 + 32 * b + f, row_0 + t, weights[spot(f, t / 4)][t % 4]);
            }
        }
    }
}
