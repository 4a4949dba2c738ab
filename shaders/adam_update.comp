// adam_update: m += rate1 (g - m);  v += rate2 (g^2 - v);  p -= lr weight_decay p;
// p -= lr m' / (sqrt(v') + eps) with m' = m / c1, v' = v / c2, rate = 1 - beta, c = 1 - beta^t.
// p, m, v, g [n], from element `start` of the flat buffer on, where `count` parameters from number `first` on lie;
// state = tickets, rows (c1, c2, t): the optimizer's, which moves on if `last`, and every parameter's, which moves on
// with it; settings = (lr, rate1, rate2, eps, weight_decay, beta1, beta2); places = (N, ends of the N parameters, and
// the parameter of every 64th element); factor, bad [1]; stored [n]
// First g *= factor, and if bad is not 0 that is all.  Stored numbers of 16 bits are followed, and rounded from p.
// A finite g whose square is infinite counts as the largest other.  Arithmetic is `precise`, in the reference's order.
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TURNS 1
#define TYPES 2
#define STORED 9
#include "turns.glsl"

layout(constant_id = 0) const uint last = 0;
layout(push_constant) uniform Args {
    uint n, p_at, m_at, v_at, state_at, settings_at, places_at, g_at, factor_at, bad_at, stored_at, start, first, count;
};
layout(set = 0, binding = 0) buffer P_ { float p[]; };
layout(set = 0, binding = 1) buffer M_ { float m[]; };
layout(set = 0, binding = 2) buffer V_ { float v[]; };
layout(set = 0, binding = 3) coherent buffer State_ { uint state[]; };
layout(set = 0, binding = 4) readonly buffer Settings_ { float settings[]; };
layout(set = 0, binding = 5) readonly buffer Places_ { uint places[]; };
layout(set = 0, binding = 6) buffer G_ { float g[]; };
layout(set = 0, binding = 7) readonly buffer Factor_ { float factor[]; };
layout(set = 0, binding = 8) readonly buffer Bad_ { float bad[]; };
#include "update.glsl"
#include "counts.glsl"

// x + rate (y - x), from the nearer end: a small y has no digits left in y - x.
float moved(float x, float y, float rate, float beta) {
    precise float from_x = x + (y - x) * rate, from_y = (x - y) * beta + y;
    return rate <= 0.5 ? from_x : from_y;
}

const float MOST = 18446742974197923840.0, LARGEST = 3.4028234663852886e38;  // below 2^64; of floats

float with_square(float g) { return abs(g) > MOST && abs(g) <= LARGEST ? (g < 0.0 ? -MOST : MOST) : g; }

// What all elements of a parameter have in common; read and computed once, as some drivers read a word for every lane.
uint slot_end;
float eps_by_count, lr_by_count;

void look_at(uint slot, float c1, float c2, float lr, float eps) {
    slot_end = places[places_at + 1 + slot];
    precise float root = sqrt(c2), by_root = eps * root, by_counts = lr * root / c1;
    eps_by_count = by_root;
    lr_by_count = by_counts;
}

void main() {
    const bool skip = bad[bad_at] != 0.0;
    const float by = factor[factor_at];
    const float lr = settings[settings_at], rate1 = settings[settings_at + 1], rate2 = settings[settings_at + 2];
    const float eps = settings[settings_at + 3], weight_decay = settings[settings_at + 4];
    const float beta1 = settings[settings_at + 5], beta2 = settings[settings_at + 6];
    precise float decay = 1.0 - lr * weight_decay;
    const uint slot = first_slot();
    if (!skip) {
        publish_counts(slot, rate1, rate2);
        look_at(slot, counts_here[0], counts_here[1], lr, eps);
    }
    uint word;
    for (uint turn = 0; turn < turns * ROW; turn++) {
        const uint i = PLACE(turn, OF_STORED);
        const float grad = with_square(scaled_gradient(i, by));
        if (skip || i >= n) continue;
        while (start + i >= slot_end) {  // once at most; an `if` would cost drivers that make both its branches
            const uint other = slot_of(start + i);
            look_at(other, counted(counts_at(other), rate1), counted(counts_at(other) + 1, rate2), lr, eps);
        }
        precise float square = grad * grad;
        precise float m_i = moved(m[m_at + i], grad, rate1, beta1), v_i = moved(v[v_at + i], square, rate2, beta2);
        precise float p_i = master(i);
        p_i *= decay;
        p_i -= m_i / (sqrt(v_i) + eps_by_count) * lr_by_count;
        m[m_at + i] = m_i;
        v[v_at + i] = v_i;
        KEEP(i, p_i, word)
    }
    if (skip || !is_last_reader(state_at, groups_of(n))) return;
    const uint me = gl_LocalInvocationID.x;
    for (uint k = me; k < count; k += gl_WorkGroupSize.x) advance(counts_at(first + k), rate1, rate2);
    if (me != 0) return;
    if (last != 0) advance(state_at + 1, rate1, rate2);
    state[state_at] = 0;
}
