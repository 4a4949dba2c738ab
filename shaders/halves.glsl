// Slices of both operands of a product in 16 bits, in shared memory, and the sizes of what is multiplied.  Used by
// cooperative.glsl alone.
#ifdef FLOAT16  // whose range is too small for gradients: with BANDS, or for tests on devices without bfloat16
#define HALF float16_t
#define HALVES f16vec4
#define DROPPED 13
#else
#define HALF bfloat16_t
#define HALVES bf16vec4
#define DROPPED 16
#endif
layout(constant_id = 10) const uint TERMS = 1;
layout(constant_id = 11) const uint M = 16;  // rows, columns and depth of a matrix
layout(constant_id = 12) const uint N = 16;
layout(constant_id = 13) const uint K = 16;

// A subgroup makes DOWN x ACROSS elements.  Lines of the slices lie as in memory, with 16 bytes more, which spread what
// is read together over the banks.
const uint SUBGROUPS = LANES, HIGH_M = DOWN / M, WIDE_N = ACROSS / N;
const uint A_LINE = (A_ALONG_K ? DEPTH : TILE_ROWS) / 4 + 2, B_LINE = (B_ALONG_K ? DEPTH : TILE_COLS) / 4 + 2;
const uint A_SIZE = (A_ALONG_K ? TILE_ROWS : DEPTH) * A_LINE, B_SIZE = (B_ALONG_K ? TILE_COLS : DEPTH) * B_LINE;
shared HALVES high[A_SIZE + B_SIZE], low[TERMS > 1 ? A_SIZE + B_SIZE : 2];

#define MATRIX_OF(use, rows, cols) coopmat<HALF, gl_ScopeSubgroup, rows, cols, use>
#define A_MATRIX MATRIX_OF(gl_MatrixUseA, M, K)
#define B_MATRIX MATRIX_OF(gl_MatrixUseB, K, N)
#define SUM_MATRIX coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
const int A_LAYOUT = A_ALONG_K ? gl_CooperativeMatrixLayoutRowMajor : gl_CooperativeMatrixLayoutColumnMajor;
const int B_LAYOUT = B_ALONG_K ? gl_CooperativeMatrixLayoutColumnMajor : gl_CooperativeMatrixLayoutRowMajor;

// Where the q-th quad of an invocation lies in a slice, across and along the inner axis: neighbours load neighbouring
// words.
uvec2 in_slice(uint q, bool along_k, uint size) {
    const uint i = gl_LocalInvocationID.x + q * THREADS, quads = size / 4;
    return along_k ? uvec2(i / (DEPTH / 4), i % (DEPTH / 4) * 4) : uvec2(i % quads * 4, i / quads);
}
uvec2 a_place(uint q) { return in_slice(q, A_ALONG_K, TILE_ROWS); }
uvec2 b_place(uint q) { return in_slice(q, B_ALONG_K, TILE_COLS); }
uint in_line(uvec2 at, bool along_k, uint line) { return along_k ? at.x * line + at.y / 4 : at.y * line + at.x / 4; }

// x with only the bits that a half has, without those that are DROPPED.  By arithmetic on the bits: conversions may
// round as they like, and compilers take a conversion to a half and back for nothing.
vec4 rounded(vec4 x) {
    const uvec4 bits = floatBitsToUint(x), nearest = (bits + (1u << (DROPPED - 1))) >> DROPPED << DROPPED;
    return mix(uintBitsToFloat(nearest), x, equal(bits & 0x7F800000u, uvec4(0x7F800000u)));  // NaN and infinity stay
}

void keep_halves(vec4 quad, uint at) {
    const vec4 near = rounded(quad);
    high[at] = HALVES(near);
    if (TERMS > 1) low[at] = HALVES(rounded(quad - near));
}
