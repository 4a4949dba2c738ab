// sgd_update: d = g + weight_decay p;  momentum = mu momentum + d;  p -= lr d', where d' is d without momentum (mu = 0,
// then `momentum` is not touched), d + mu momentum with `nesterov`, and momentum otherwise.
// p, momentum, g [n]; state = (tickets, t), where t grows by 1 if `last`; settings = (lr, mu, weight_decay, nesterov);
// factor, bad [1]: first g *= factor, and if bad is not 0 that is all.  Then stored [n], of 16 bits, is followed, and
// rounded from p.
// grid: n / turns invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#define TURNS 1
#define TYPES 2
#define STORED 7
#include "turns.glsl"

layout(constant_id = 0) const uint last = 0;
layout(push_constant) uniform Args {
    uint n, p_at, momentum_at, state_at, settings_at, g_at, factor_at, bad_at, stored_at;
};
layout(set = 0, binding = 0) buffer P_ { float p[]; };
layout(set = 0, binding = 1) buffer Momentum_ { float momentum[]; };
layout(set = 0, binding = 2) coherent buffer State_ { uint state[]; };
layout(set = 0, binding = 3) readonly buffer Settings_ { float settings[]; };
layout(set = 0, binding = 4) buffer G_ { float g[]; };
layout(set = 0, binding = 5) readonly buffer Factor_ { float factor[]; };
layout(set = 0, binding = 6) readonly buffer Bad_ { float bad[]; };
#include "update.glsl"

void main() {
    const bool skip = bad[bad_at] != 0.0;
    const float by = factor[factor_at];
    const float lr = settings[settings_at], mu = settings[settings_at + 1], weight_decay = settings[settings_at + 2];
    const bool nesterov = settings[settings_at + 3] != 0.0;
    uint word;
    for (uint turn = 0; turn < turns * ROW; turn++) {
        const uint i = PLACE(turn, OF_STORED);
        const float grad = scaled_gradient(i, by);
        if (skip || i >= n) continue;
        precise float p_i = master(i);
        precise float d = grad + weight_decay * p_i;
        if (mu != 0.0) {
            precise float b = mu * momentum[momentum_at + i] + d;
            momentum[momentum_at + i] = b;
            d = nesterov ? d + mu * b : b;
        }
        p_i -= lr * d;
        KEEP(i, p_i, word)
    }
    if (skip || last == 0 || !is_last_reader(state_at, groups_of(n)) || gl_LocalInvocationID.x != 0) return;
    state[state_at + 1] = floatBitsToUint(uintBitsToFloat(state[state_at + 1]) + 1.0);
    state[state_at] = 0;
}
