// Loads tiles of features into shared memory, some of them to stay there, and multiplies rows with columns.

// Copies so many features, at so many times, into rows of `pitch` quads: neighbours read what lies side by side.  There
// are 512 words or a multiple of that.
void copy(uint first, uint pitch, uint operand, uint f_0, uint features, uint t_0, uint times) {
    if (vector != 0) {
        LEFT for (uint e = gl_LocalInvocationID.x; e < features * times / 4; e += THREADS) {
            const uint f = e / (times / 4), t = e % (times / 4);
            slices[first + f * pitch + t] = quad(operand, f_0 + f, t_0 + 4 * t);
        }
    } else {
        LEFT for (uint e_0 = gl_LocalInvocationID.x; e_0 < features * times; e_0 += TOGETHER * THREADS) {
            [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
                const uint e = e_0 + i * THREADS, f = e / times, t = e % times;
                slices[first + f * pitch + t / 4][t % 4] = element(operand, f_0 + f, t_0 + t);
            }
        }
    }
}

// Where the rows of the first or second operand (0 or 1) are held.
uint hold_at(uint number) { return BEHIND + number * blocks * 32 * ROWS / 4; }

// Loads the rows of an operand, if there is room to hold them; products() waits for them.
void hold(uint number, uint operand, uint row_0, uint features) {
    if (number < held) copy(hold_at(number), ROWS / 4, operand, 0, (features + DEPTH - 1) / DEPTH * DEPTH, row_0, ROWS);
}

// The products of the feature vectors of rows, which are the operand number 0 or 1 of those to be held, and columns.
mat4 products(uint number, uint rows, uint row_0, uint columns, uint column_0, uint features) {
    const uint of_rows = DEPTH * COLUMNS / 4;
    mat4 sums = mat4(0.0);
    LEFT for (uint f_0 = 0; f_0 < features; f_0 += DEPTH) {
        copy(0, COLUMNS / 4, columns, f_0, DEPTH, column_0, COLUMNS);
        if (number >= held) copy(of_rows, ROWS / 4, rows, f_0, DEPTH, row_0, ROWS);
        barrier();
        const uint at_0 = row() / 4 + (number < held ? hold_at(number) + f_0 * (ROWS / 4) : of_rows);
        ROLLED for (uint f = 0; f < DEPTH; f += 4) {
            for (uint i = 0; i < 4; i++) {
                const vec4 c = slices[(f + i) * (COLUMNS / 4) + column() / 4];
                sums += outerProduct(c, slices[at_0 + (f + i) * (ROWS / 4)]);
            }
        }
        barrier();
    }
    return sums;
}
