// adam_update: m += rate1 (g - m);  v += rate2 (g^2 - v);  p -= lr weight_decay p;
// p -= lr m' / (sqrt(v') + eps) with m' = m / c1, v' = v / c2, rate = 1 - beta, c = 1 - beta^t.
// p, m, v, g [n]; state[8] = (lr, c1, c2, t, tickets, ...), which moves on to the next step if `last`; factor, bad [1]
// First g *= factor, and if bad is not 0 that is all.
// All arithmetic is `precise`, in the order of the reference, so that no driver fuses it in its own way.
// grid: n invocations
#version 450
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"

layout(constant_id = 0) const uint last = 0;
layout(push_constant) uniform Args {
    uint n, p_at, m_at, v_at, state_at, g_at, factor_at, bad_at;
    float rate1, rate2, eps, weight_decay;
};
layout(set = 0, binding = 0) buffer P_ { float p[]; };
layout(set = 0, binding = 1) buffer M_ { float m[]; };
layout(set = 0, binding = 2) buffer V_ { float v[]; };
layout(set = 0, binding = 3) coherent buffer State_ { uint state[]; };
layout(set = 0, binding = 4) buffer G_ { float g[]; };
layout(set = 0, binding = 5) readonly buffer Factor_ { float factor[]; };
layout(set = 0, binding = 6) readonly buffer Bad_ { float bad[]; };
#include "ticket.glsl"
#include "scaled_gradient.glsl"

float state_float(uint word) { return uintBitsToFloat(state[state_at + word]); }

void main() {
    const uint i = invocation();
    const float grad = scaled_gradient(i);
    if (bad[bad_at] != 0.0) return;
    const float lr = state_float(0), t = state_float(3);
    precise float c1 = state_float(1), c2 = state_float(2);
    c1 += rate1 * (1.0 - c1);
    c2 += rate2 * (1.0 - c2);
    if (i < n) {
        precise float m_i = m[m_at + i], v_i = v[v_at + i], p_i = p[p_at + i];
        m_i += (grad - m_i) * rate1;
        v_i += (grad * grad - v_i) * rate2;
        p_i *= 1.0 - lr * weight_decay;
        p_i -= m_i / (sqrt(v_i) + eps * sqrt(c2)) * (lr * sqrt(c2) / c1);
        m[m_at + i] = m_i;
        v[v_at + i] = v_i;
        p[p_at + i] = p_i;
    }
    if (last != 0 && is_last_reader(state_at + 4)) {
        state[state_at + 1] = floatBitsToUint(c1);
        state[state_at + 2] = floatBitsToUint(c2);
        state[state_at + 3] = floatBitsToUint(t + 1.0);
        state[state_at + 4] = 0;
    }
}
