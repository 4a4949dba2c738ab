// Operands that may have 16 bits, two to a word: `types` has two bits for each, in order, 0 for float32, 1 for bfloat16
// and 2 for halves.  NUMBERS declares an operand as floats and as such words; results of 16 bits are made in pairs.
// A kernel with other specialization constants defines TYPES, the number of this one, before.
#include "half_bits.glsl"
#ifndef TYPES
#define TYPES 1
#endif
#ifdef FLOATS  // no operand has 16 bits, and no driver compiles what would be for such
const uint types = 0u;
#else
layout(constant_id = TYPES) const uint types = 0;
#endif

#define NUMBERS(number, access, block, x) \
    layout(set = 0, binding = number) access buffer block##_ { float x[]; }; \
    layout(set = 0, binding = number) access buffer block##Halves_ { uint x##halves[]; };

#define TYPE_OF(number) (types >> 2 * (number) & 3u)
#define FIRST_OF(number, at) ((at) << min(TYPE_OF(number), 1u))  // the element at a word

float wide(uint word, uint i, uint type) {
    const uint h = word >> 16 * (i & 1u) & 0xFFFFu;
    return uintBitsToFloat(type == 1u ? h << 16 : half_to_float_bits(h));
}

uint narrow(float x, uint i, uint type) {
    const uint bits = floatBitsToUint(x);
    return (type == 1u ? float_to_bfloat(bits) : float_to_half(bits)) << 16 * (i & 1u);
}

// Element i of an operand that begins at word `at`.
#define NUMBER(x, number, at, i) \
    (TYPE_OF(number) == 0u ? x[(at) + (i)] : wide(x##halves[(at) + (i) / 2u], i, TYPE_OF(number)))

// Results that an invocation makes in a row, the place of one by its turn, and how it is stored as one of n.  Software
// drivers run what `types` rules out, so a value is made once.
#define IN_A_ROW(mask) ((types & (mask)) == 0u ? 1u : 2u)
#define PLACE(turn, mask) (element((turn) / IN_A_ROW(mask)) * IN_A_ROW(mask) + (turn) % IN_A_ROW(mask))
#define PUT(x, number, at, i, n, value, word) \
    { \
        const float made = value; \
        if (TYPE_OF(number) == 0u) x[(at) + (i)] = made; \
        else { \
            word = (((i) & 1u) == 0u ? 0u : word) | narrow(made, i, TYPE_OF(number)); \
            if (((i) & 1u) == 1u || (i) + 1u == (n)) x##halves[(at) + (i) / 2u] = word; \
        } \
    }

// Stores element i, counted from the buffer's beginning, while others may set the other half of its word.
#define PUT_ALONE(x, number, i, value) \
    { \
        const float made = value; \
        if (TYPE_OF(number) == 0u) x[i] = made; \
        else atomicXor(x##halves[(i) / 2u], narrow(made, i, TYPE_OF(number)) \
                       ^ x##halves[(i) / 2u] & 0xFFFFu << 16 * ((i) & 1u)); \
    }

// The same in quads, aligned to four words; element i, counted from the buffer's beginning, begins one.
#define QUADS(number, access, block, x) \
    layout(set = 0, binding = number) access buffer block##Quads_ { vec4 x##_quads[]; }; \
    layout(set = 0, binding = number) access buffer block##HalfQuads_ { uvec2 x##_half_quads[]; };

vec4 wide_quad(uvec2 words, uint type) {
    return vec4(wide(words.x, 0u, type), wide(words.x, 1u, type), wide(words.y, 0u, type), wide(words.y, 1u, type));
}

uvec2 narrow_quad(vec4 x, uint type) {
    return uvec2(narrow(x.x, 0u, type) | narrow(x.y, 1u, type), narrow(x.z, 0u, type) | narrow(x.w, 1u, type));
}

#define QUAD(x, number, i) \
    (TYPE_OF(number) == 0u ? x##_quads[(i) / 4u] : wide_quad(x##_half_quads[(i) / 4u], TYPE_OF(number)))
#define PUT_QUAD(x, number, i, value) \
    if (TYPE_OF(number) == 0u) x##_quads[(i) / 4u] = value; \
    else x##_half_quads[(i) / 4u] = narrow_quad(value, TYPE_OF(number));
