// Slices of both operands of a product in 16 bits, in shared memory, and the sizes of what is multiplied.  Used by
// cooperative.glsl alone.
#ifdef FLOAT16  // whose range is too small for gradients: with BANDS, or for tests on devices without bfloat16
#define HALF float16_t
#else
#define HALF bfloat16_t
#endif
layout(constant_id = 10) const uint TERMS = 1;
layout(constant_id = 11) const uint M = 16;  // rows, columns and depth of a matrix
layout(constant_id = 12) const uint N = 16;
layout(constant_id = 13) const uint K = 16;

// A subgroup makes DOWN x ACROSS elements.  Lines of the slices lie as in memory, in words of 8 halves, with one more,
// which spreads what is read together over the banks.  Matrices are loaded quickly from whole numbers alone: an H100
// took four times as long over vectors of bfloat16, and over their conversions.
const uint SUBGROUPS = LANES, HIGH_M = DOWN / M, WIDE_N = ACROSS / N;
const uint A_LINE = (A_ALONG_K ? DEPTH : TILE_ROWS) / 8 + 1, B_LINE = (B_ALONG_K ? DEPTH : TILE_COLS) / 8 + 1;
const uint A_SIZE = (A_ALONG_K ? TILE_ROWS : DEPTH) * A_LINE, B_SIZE = (B_ALONG_K ? TILE_COLS : DEPTH) * B_LINE;
shared uvec4 high[A_SIZE + B_SIZE], low[TERMS > 1 ? A_SIZE + B_SIZE : 1];

#define MATRIX_OF(use, rows, cols) coopmat<HALF, gl_ScopeSubgroup, rows, cols, use>
#define A_MATRIX MATRIX_OF(gl_MatrixUseA, M, K)
#define B_MATRIX MATRIX_OF(gl_MatrixUseB, K, N)
#define SUM_MATRIX coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
const int A_LAYOUT = A_ALONG_K ? gl_CooperativeMatrixLayoutRowMajor : gl_CooperativeMatrixLayoutColumnMajor;
const int B_LAYOUT = B_ALONG_K ? gl_CooperativeMatrixLayoutColumnMajor : gl_CooperativeMatrixLayoutRowMajor;

// Where the q-th quad of an invocation lies in a slice, across and along the inner axis: two quads are a word.
uvec2 half_place(uint q, bool along_k, uint size) {
    const uint i = gl_LocalInvocationID.x + q / 2 * THREADS, words = (along_k ? DEPTH : size) / 8;
    const uint in_line = i % words * 8 + q % 2 * 4, line = i / words;
    return along_k ? uvec2(line, in_line) : uvec2(in_line, line);
}
uvec2 a_half(uint q) { return half_place(q, A_ALONG_K, TILE_ROWS); }
uvec2 b_half(uint q) { return half_place(q, B_ALONG_K, TILE_COLS); }

// The word with an element.
uint in_line(uvec2 at, bool along_k, uint line) { return along_k ? at.x * line + at.y / 8 : at.y * line + at.x / 8; }

#ifdef FLOAT16
// x with only the bits that float16 has.  By arithmetic on the bits: conversions may round as they like, and compilers
// take a conversion to a half and back for nothing.
vec4 rounded(vec4 x) {
    const uvec4 bits = floatBitsToUint(x), nearest = (bits + (1u << 12)) >> 13 << 13;
    return mix(uintBitsToFloat(nearest), x, equal(bits & 0x7F800000u, uvec4(0x7F800000u)));  // NaN and infinity stay
}
uvec2 halves_of(vec4 near) { return uvec2(packHalf2x16(near.xy), packHalf2x16(near.zw)); }
#else
// bfloat16 is the upper half of a float32, here with what is nearest in it; a NaN stays one, whatever bits it has.
vec4 rounded(vec4 x) {
    const uvec4 bits = floatBitsToUint(x), nearest = bits + 0x8000u & 0xFFFF0000u;
    return uintBitsToFloat(mix(nearest, uvec4(0x7FC00000u), greaterThan(bits & 0x7FFFFFFFu, uvec4(0x7F800000u))));
}
uvec2 halves_of(vec4 near) {
    const uvec4 bits = floatBitsToUint(near);
    return bits.xz >> 16 | bits.yw;
}
#endif

// What rounding left off; nothing of an infinity.
vec4 rest(vec4 x, vec4 near) {
    return mix(x - near, vec4(0.0), equal(floatBitsToUint(near) & 0x7F800000u, uvec4(0x7F800000u)));
}

void keep_halves(vec4 first, vec4 second, uint at) {
    const vec4 near = rounded(first), also_near = rounded(second);
    high[at] = uvec4(halves_of(near), halves_of(also_near));
    if (TERMS > 1)
        low[at] = uvec4(halves_of(rounded(rest(first, near))), halves_of(rounded(rest(second, also_near))));
}
