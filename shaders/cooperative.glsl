// Products of matrices, out = A[rows, inner] B[inner, cols], on cooperative matrices, which the invocations of a
// subgroup hold and multiply together.  Takes the place of product.glsl, and needs the same functions and macros of the
// kernel.  An operand in float32 is rounded to 16 bits on its way into shared memory; with TERMS = 3, what rounding
// left off is kept, too, rounded in turn, and a b = a_high b_high + a_high b_low + a_low b_high.  Sums are in float32.
#include "tiles.glsl"

void begin(uint product);
vec4 a_quad(uint row, uint k);
vec4 b_quad(uint k, uint col);
void put(uint row, uint col, vec4 quad);
uint first, end;

#include "halves.glsl"

shared vec4 made[SUBGROUPS * M * N / 4];  // on the way to memory, a matrix per subgroup
vec4 a_next[A_QUADS], b_next[B_QUADS];
SUM_MATRIX sums[HIGH_M * WIDE_N];
#ifdef BANDS
#include "bands.glsl"
#else
#define ADDED_TO sums
#endif

void fetch(uint top, uint left, uint k) {
    [[unroll]] for (uint q = 0; q < A_QUADS; q++) a_next[q] = a_quad(top + a_place(q).x, k + a_place(q).y);
    [[unroll]] for (uint q = 0; q < B_QUADS; q++) b_next[q] = b_quad(k + b_place(q).y, left + b_place(q).x);
}

void keep_fetched() {
    [[unroll]] for (uint q = 0; q < A_QUADS; q++) keep_halves(a_next[q], in_line(a_place(q), A_ALONG_K, A_LINE));
    [[unroll]] for (uint q = 0; q < B_QUADS; q++)
        keep_halves(b_next[q], A_SIZE + in_line(b_place(q), B_ALONG_K, B_LINE));
}

void multiply(uint row, uint col, uint k) {
    A_MATRIX a_high[HIGH_M], a_low[HIGH_M];
    [[unroll]] for (uint i = 0; i < HIGH_M; i++) {
        const uint at = in_line(uvec2(row + i * M, k), A_ALONG_K, A_LINE);
        coopMatLoad(a_high[i], high, at, A_LINE, A_LAYOUT);
        if (TERMS > 1) coopMatLoad(a_low[i], low, at, A_LINE, A_LAYOUT);
    }
    [[unroll]] for (uint j = 0; j < WIDE_N; j++) {
        const uint at = A_SIZE + in_line(uvec2(col + j * N, k), B_ALONG_K, B_LINE);
        B_MATRIX b_high, b_low;
        coopMatLoad(b_high, high, at, B_LINE, B_LAYOUT);
        if (TERMS > 1) coopMatLoad(b_low, low, at, B_LINE, B_LAYOUT);
        [[unroll]] for (uint i = 0; i < HIGH_M; i++) {
            const uint s = i * WIDE_N + j;
            if (TERMS > 1) {  // the small ones first
                ADDED_TO[s] = coopMatMulAdd(a_low[i], b_high, ADDED_TO[s]);
                ADDED_TO[s] = coopMatMulAdd(a_high[i], b_low, ADDED_TO[s]);
            }
            ADDED_TO[s] = coopMatMulAdd(a_high[i], b_high, ADDED_TO[s]);
        }
    }
}

void main() {
    const uvec3 at = tile();
    if (at.z >= PRODUCTS || gl_NumSubgroups != SUBGROUPS) return;  // the latter is found by the backend's self-test
    const uint row = gl_SubgroupID / WIDE * DOWN, col = gl_SubgroupID % WIDE * ACROSS;
    const uint mine = gl_SubgroupID * (M * N / 4);
    [[unroll]] for (uint s = 0; s < HIGH_M * WIDE_N; s++) sums[s] = SUM_MATRIX(0.0);
    begin(at.z);
#ifdef BANDS
    for (uint k_0 = first; k_0 < end; k_0 += DEPTH) {
        fetch(at.x, at.y, k_0);
        add_in_bands(row, col);
    }
#else
    fetch(at.x, at.y, first);
    for (uint k_0 = first; k_0 < end; k_0 += DEPTH) {
        barrier();
        keep_fetched();
        barrier();
        if (k_0 + DEPTH < end) fetch(at.x, at.y, k_0 + DEPTH);
        [[unroll]] for (uint k = 0; k < DEPTH; k += K) multiply(row, col, k);
    }
#endif
    [[unroll]] for (uint i = 0; i < HIGH_M; i++) {
        [[unroll]] for (uint j = 0; j < WIDE_N; j++) {
            barrier();
            coopMatStore(sums[i * WIDE_N + j], made, mine, N / 4, gl_CooperativeMatrixLayoutRowMajor);
            barrier();
            for (uint q = gl_SubgroupInvocationID; q < M * N / 4; q += gl_SubgroupSize)
                put(at.x + row + i * M + q / (N / 4), at.y + col + j * N + q % (N / 4) * 4, made[mine + q]);
        }
    }
}
