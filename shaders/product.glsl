// Products of matrices, out = A[rows, inner] B[inner, cols], whose elements a kernel may also compute.
// A workgroup makes a tile of out from slices of A and B, DEPTH deep; while one is used, the next is on its way into
// registers.  An invocation makes DOWN x ACROSS elements: quads that are as far apart as there are neighbours, which
// so read neighbouring quads.  Where tiles are small, SHARES invocations make the same elements, each from a share of
// the inner axis, and one adds up the shares: always in the same order, so with the same bits.
// The kernel declares Args with rows, cols and inner, and defines, before including this: PRODUCTS, how many there are;
// A_ALONG_K and B_ALONG_K, whether quads of A and B lie along the inner axis, and A_BY_WORDS if A has none; and after
// it, the functions below.
#include "tiles.glsl"

void begin(uint product);           // sets first and end, the part of the inner axis to go over, and what it likes
#ifdef A_BY_WORDS
float a_word(uint row, uint k);     // an element of A; outside of the matrix, 0
#else
vec4 a_quad(uint row, uint k);      // four of them
#endif
vec4 b_quad(uint k, uint col);
#ifdef B_BY_WORDS
float b_word(uint k, uint col);     // the same for one element
#endif
void put(uint row, uint col, vec4 quad);  // writes four elements of a row of out, those that are inside
uint first, end;

// Asked for by name, for a driver that is told to keep NaN and infinity (strict, in the manifest) may not fuse the two.
#ifdef FIXED
#define ADD_PRODUCT(sum, x, quad) sum += x * quad
#else
#define ADD_PRODUCT(sum, x, quad) sum = fma(vec4(x), quad, sum)
#endif

const uint QUADS = ACROSS / 4, SUMS = DOWN * QUADS;
vec4 a_next[A_QUADS], b_next[B_QUADS], sums[SUMS];

#include "slices.glsl"

void multiply(uint a_at, uint b_at) {
    vec4 a_k[DOWN / 4], b_k[QUADS];
    [[unroll]] for (uint i = 0; i < DOWN / 4; i++) a_k[i] = slice[a_at + i * HIGH];
    [[unroll]] for (uint j = 0; j < QUADS; j++) b_k[j] = slice[b_at + j * WIDE];
    [[unroll]] for (uint i = 0; i < DOWN / 4; i++) {
        [[unroll]] for (uint j = 0; j < QUADS; j++) {
            const uint s = 4 * i * QUADS + j;
            ADD_PRODUCT(sums[s], a_k[i].x, b_k[j]);
            ADD_PRODUCT(sums[s + QUADS], a_k[i].y, b_k[j]);
            ADD_PRODUCT(sums[s + 2 * QUADS], a_k[i].z, b_k[j]);
            ADD_PRODUCT(sums[s + 3 * QUADS], a_k[i].w, b_k[j]);
        }
    }
}

void add_shares(uint share, uint lane) {
    barrier();
    [[unroll]] for (uint s = 0; s < SUMS; s++) slice[(share * SUMS + s) * LANES + lane] = sums[s];
    barrier();
    for (uint other = 1; other < SHARES; other++)
        [[unroll]] for (uint s = 0; s < SUMS; s++) sums[s] += slice[(other * SUMS + s) * LANES + lane];
}

#include "row_sums.glsl"
#include "put_sums.glsl"

void main() {
    const uvec3 at = tile();
    if (at.z >= PRODUCTS) return;
    const uint share = gl_LocalInvocationID.x / LANES, lane = gl_LocalInvocationID.x % LANES;
    const uint y = lane / WIDE, x = lane % WIDE;
    [[unroll]] for (uint s = 0; s < SUMS; s++) sums[s] = vec4(0.0);
    begin(at.z);
    fetch(at.x, at.y, first);
    for (uint k_0 = first; k_0 < end; k_0 += DEPTH) {
        barrier();
        keep_fetched();
        barrier();
        if (k_0 + DEPTH < end) fetch(at.x, at.y, k_0 + DEPTH);
        if (at.y == 0) add_up_rows();
        for (uint k = share; k < DEPTH; k += 2 * SHARES) {  // half the steps: drivers end loops after 65,535
            multiply(k * A_PITCH + y, B_AT + k * B_PITCH + x);
            multiply((k + SHARES) * A_PITCH + y, B_AT + (k + SHARES) * B_PITCH + x);
        }
    }
    if (at.y == 0) put_row_sums(at.x);
    if (SHARES > 1) add_shares(share, lane);
    if (share == 0) put_sums(at.x + 4 * y, at.y + 4 * x);
}
