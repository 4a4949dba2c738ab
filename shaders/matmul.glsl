// out[z] = op(A) op(B), over the k from FIRST to END, of matrix MATRIX of those that lie one after the other.  The
// kernel defines these before including this, and PARAMS, further push-constant members.
// A workgroup makes a tile of out, 16 deep slices of A and B at a time in shared memory; an invocation makes 8 x 4
// elements of it, spread so that neighbours read and write neighbouring words.
layout(local_size_x = 16, local_size_y = 8) in;

layout(constant_id = 0) const uint ta = 0;
layout(constant_id = 1) const uint tb = 0;
layout(push_constant) uniform Args { uint rows, cols, inner, out_at, a_at, b_at; PARAMS };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
layout(set = 0, binding = 1) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 2) readonly buffer B_ { float b[]; };

const uint TILE = 64, DEPTH = 16, PITCH = TILE + 1;  // the odd pitch spreads a column over the banks
const uint WIDE = gl_WorkGroupSize.x, HIGH = gl_WorkGroupSize.y;
const uint DOWN = TILE / HIGH, ACROSS = TILE / WIDE;
shared float a_tile[DEPTH * PITCH];
shared float b_tile[DEPTH * PITCH];

// Neighbouring invocations load neighbouring words: walk a slice along k, or along the tile, as it lies in memory.
uvec2 place(uint e, bool along_k) { return along_k ? uvec2(e / DEPTH, e % DEPTH) : uvec2(e % TILE, e / TILE); }

void load(uint top, uint left, uint k_0, uint a_0, uint b_0) {
    for (uint e = gl_LocalInvocationIndex; e < TILE * DEPTH; e += WIDE * HIGH) {
        const uvec2 i = place(e, ta == 0), j = place(e, tb != 0);
        const uint row = top + i.x, col = left + j.x, ka = k_0 + i.y, kb = k_0 + j.y;
        a_tile[i.y * PITCH + i.x] =
            row < rows && ka < inner ? a[a_0 + (ta != 0 ? ka * rows + row : row * inner + ka)] : 0.0;
        b_tile[j.y * PITCH + j.x] =
            col < cols && kb < inner ? b[b_0 + (tb != 0 ? col * inner + kb : kb * cols + col)] : 0.0;
    }
}

void main() {
    const uint top = gl_WorkGroupID.y * TILE, left = gl_WorkGroupID.x * TILE;
    const uint y = gl_LocalInvocationID.y, x = gl_LocalInvocationID.x;
    const uint out_0 = out_at + gl_WorkGroupID.z * rows * cols, end = END;
    const uint a_0 = a_at + MATRIX * rows * inner, b_0 = b_at + MATRIX * inner * cols;
    float sums[DOWN * ACROSS];
    [[unroll]] for (uint e = 0; e < DOWN * ACROSS; e++) sums[e] = 0.0;
    for (uint k_0 = FIRST; k_0 < end; k_0 += DEPTH) {
        load(top, left, k_0, a_0, b_0);
        barrier();
        for (uint k = 0; k < min(DEPTH, end - k_0); k++) {
            float a_k[DOWN], b_k[ACROSS];
            [[unroll]] for (uint i = 0; i < DOWN; i++) a_k[i] = a_tile[k * PITCH + y + i * HIGH];
            [[unroll]] for (uint j = 0; j < ACROSS; j++) b_k[j] = b_tile[k * PITCH + x + j * WIDE];
            [[unroll]] for (uint i = 0; i < DOWN; i++)
                [[unroll]] for (uint j = 0; j < ACROSS; j++) sums[i * ACROSS + j] += a_k[i] * b_k[j];
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < DOWN; i++) {
        [[unroll]] for (uint j = 0; j < ACROSS; j++) {
            const uint row = top + y + i * HIGH, col = left + x + j * WIDE;
            if (row < rows && col < cols) out_[out_0 + row * cols + col] = sums[i * ACROSS + j];
        }
    }
}
