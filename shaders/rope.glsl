// Pairs of a head's features turn by an angle of their own, times the position; those behind the first `rotary` stay.
// A pair is i and i + rotary / 2, or two neighbours where `interleaved`.  rope.comp and rope_pair.comp include this.
#include "index.glsl"

layout(push_constant) uniform Args {
    uint n, heads, dim, rotary, interleaved, times, batch, counted, time_step, batch_step, OFFSETS positions_at,
        frequencies_at;
    int offset;
    float factor, way;
};

// Sine and cosine of a position times a frequency: turns, in 64 bits behind the point, where whole turns fall away.  So
// large positions are as exact as small ones.  Polynomials of Cephes' sinf and cosf.
vec2 sine_cosine(int position, uint high, uint low) {
    uint carried, rest;
    umulExtended(uint(position), low, carried, rest);
    const uint turn = uint(position) * high + carried - (position < 0 ? low : 0u), quadrant = turn + 0x20000000u >> 30;
    precise float r = float(int(turn - (quadrant << 30))) * 1.4629180792671596e-9, z = r * r;  // 2 pi / 2^32
    precise float sine = r - r * z * (1.6666654611e-1 - z * (8.3321608736e-3 - z * 1.9515295891e-4));
    precise float cosine = z * z * ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2)
                           - 0.5 * z + 1.0;
    const vec2 found = (quadrant & 1u) == 0u ? vec2(sine, cosine) : vec2(cosine, -sine);
    return (quadrant & 2u) == 0u ? found : -found;
}

#define TURN(OUT, X, HEAD) { \
    const uint near = ((HEAD) * dim + feature) * inner + place, far = near + apart; \
    const float a = X(near), b = X(far); \
    precise float first = a * cosine - b * sine, second = a * sine + b * cosine; \
    OUT(near, is_turned ? first : a) \
    if (is_turned) OUT(far, second) \
}

void main() {
    const uint element = invocation(), inner = times * batch, pairs = rotary / 2, slots = dim - pairs;
    if (element >= n) return;
    const uint place = element % inner, time = place / batch, slot = element / inner % slots;
    const uint head = element / inner / slots;
    const bool is_turned = slot < pairs;  // other slots have one feature each
    const uint feature = !is_turned ? pairs + slot : interleaved != 0 ? 2 * slot : slot;
    const uint apart = is_turned ? (interleaved != 0 ? inner : pairs * inner) : 0;
    const int position = offset + int(counted * time)
                         + positions[positions_at + time * time_step + place % batch * batch_step];
    const uint row = frequencies_at + 2 * (is_turned ? slot : 0);
    const vec2 angle = is_turned ? sine_cosine(position, frequencies[row + 1], frequencies[row]) : vec2(0);
    precise float sine = angle.x * factor * way, cosine = angle.y * factor;
    HEADS
}
