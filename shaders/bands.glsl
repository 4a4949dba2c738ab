// A slice of a product in float16, right for all of float32's range: both slices are cut into bands, of 29 exponents
// each, and a band is scaled by a power of two so that it fills what float16 has without denormal numbers, 2^-14 to
// 2^15.  Products of all pairs of bands are added, scaled back.  Nearly all slices are one band each.  Scaling a whole
// operand, or its rows, by its largest element would lose what is small there and meets something large.  Elements that
// are denormal in float32 count as 0; an infinity is in every band, and may become a NaN.  Used by cooperative.glsl.
const int SPAN = 29, HIGHEST = 14, BIAS = 127;
#define ADDED_TO part
SUM_MATRIX part[HIGH_M * WIDE_N];  // of the sums, scaled
void multiply(uint row, uint col, uint k);
shared uint least[2], most[2];  // exponents of A's slice and of B's, with the bias

uvec4 exponents(vec4 quad) { return floatBitsToUint(quad) >> 23 & 0xFF; }

uvec2 widened(uvec2 range, vec4 quad) {
    const uvec4 found = exponents(quad);
    [[unroll]] for (uint c = 0; c < 4; c++)
        if (found[c] != 0 && found[c] != 0xFF) range = uvec2(min(range.x, found[c]), max(range.y, found[c]));
    return range;
}

void widen(uint operand, uvec2 range) {
    if (range.y == 0) return;
    atomicMin(least[operand], range.x);
    atomicMax(most[operand], range.y);
}

// Lowest and highest exponent of a slice; of one without any, which is zero or not finite, those of 1.
ivec2 range_of(uint operand) { return most[operand] == 0 ? ivec2(BIAS) : ivec2(least[operand], most[operand]); }

// The elements of a band, whose highest exponent is `top`, scaled; 0 in the place of others.
vec4 in_band(vec4 quad, int top) {
    const ivec4 found = ivec4(exponents(quad));
    const vec4 scaled = intBitsToFloat(floatBitsToInt(quad) - (top - BIAS - HIGHEST << 23));
    const bvec4 inside = bvec4(uvec4(lessThanEqual(found, ivec4(top))) * uvec4(greaterThan(found, ivec4(top - SPAN)))
                               * uvec4(greaterThan(found, ivec4(0))));
    return mix(mix(vec4(0.0), scaled, inside), quad, equal(found, ivec4(0xFF)));
}

float power_of_two(int exponent) { return intBitsToFloat(exponent + BIAS << 23); }

// Adds what the fetched slices give.
void add_in_bands(uint row, uint col) {
    barrier();
    if (gl_LocalInvocationIndex < 2) {
        least[gl_LocalInvocationIndex] = 0xFF;
        most[gl_LocalInvocationIndex] = 0;
    }
    barrier();
    uvec2 a_own = uvec2(0xFF, 0), b_own = uvec2(0xFF, 0);
    [[unroll]] for (uint q = 0; q < A_QUADS; q++) a_own = widened(a_own, a_next[q]);
    [[unroll]] for (uint q = 0; q < B_QUADS; q++) b_own = widened(b_own, b_next[q]);
    widen(0, a_own);
    widen(1, b_own);
    barrier();
    const ivec2 a_range = range_of(0), b_range = range_of(1);
    for (int a_top = a_range.y; a_top >= a_range.x; a_top -= SPAN) {
        for (int b_top = b_range.y; b_top >= b_range.x; b_top -= SPAN) {
            barrier();
            [[unroll]] for (uint q = 0; q < A_QUADS; q++)
                keep_halves(in_band(a_next[q], a_top), in_line(a_place(q), A_ALONG_K, A_LINE));
            [[unroll]] for (uint q = 0; q < B_QUADS; q++)
                keep_halves(in_band(b_next[q], b_top), A_SIZE + in_line(b_place(q), B_ALONG_K, B_LINE));
            barrier();
            [[unroll]] for (uint s = 0; s < HIGH_M * WIDE_N; s++) part[s] = SUM_MATRIX(0.0);
            [[unroll]] for (uint k = 0; k < DEPTH; k += K) multiply(row, col, k);
            // in two steps, as float32 has no factor so small or so large; below 2^-252 the product is 0
            const int back = max(a_top + b_top - 2 * (BIAS + HIGHEST), -252), half_way = back / 2;
            const float first_factor = power_of_two(half_way), second_factor = power_of_two(back - half_way);
            [[unroll]] for (uint s = 0; s < HIGH_M * WIDE_N; s++)
                sums[s] += part[s] * first_factor * second_factor;
        }
    }
}
