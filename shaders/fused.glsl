// out[i] = the result of a chain of functions of a, b, c and d, which are walked along the axes of out with steps of
// their own; with ALSO, another of the chain's registers goes to also[i].
#define TURNS 7
#include "turns.glsl"
#include "walk.glsl"
#define MAX_DIMS 3

#ifdef ALSO
layout(constant_id = 8) const uint kept = 4;  // the register that becomes also
#endif
layout(push_constant) uniform Args {
    uint n, ndim, out_at, a_at, b_at, c_at, d_at;
#ifdef ALSO
    uint also_at;
#endif
    float value[6];
    uint multipliers[2], shifts[1], a_step[MAX_DIMS], b_step[MAX_DIMS], c_step[MAX_DIMS], d_step[MAX_DIMS];
};
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };
#ifdef ALSO
layout(set = 0, binding = 1) buffer Also_ { float also[]; };
layout(set = 0, binding = 2) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 3) readonly buffer B_ { float b[]; };
layout(set = 0, binding = 4) readonly buffer C_ { float c[]; };
layout(set = 0, binding = 5) readonly buffer D_ { float d[]; };
#else
layout(set = 0, binding = 1) readonly buffer A_ { float a[]; };
layout(set = 0, binding = 2) readonly buffer B_ { float b[]; };
layout(set = 0, binding = 3) readonly buffer C_ { float c[]; };
layout(set = 0, binding = 4) readonly buffer D_ { float d[]; };
#endif
#include "chain.glsl"

void main() {
    for (uint turn = 0; turn < turns; turn++) {
        const uint i = element(turn);
        if (i >= n) return;
        uint q = i;
        uint a_i = a_at + i * a_step[0], b_i = b_at + i * b_step[0], c_i = c_at + i * c_step[0];
        uint d_i = d_at + i * d_step[0];
        for (uint axis = 1; axis < MAX_DIMS; axis++) {
            if (axis >= ndim) break;
            q = NEXT(q, axis);
            a_i += q * a_step[axis];
            b_i += q * b_step[axis];
            c_i += q * c_step[axis];
            d_i += q * d_step[axis];
        }
        r[0] = a[a_i];
        r[1] = b[b_i];
        r[2] = c[c_i];
        r[3] = d[d_i];
        run_chain();
        out_[out_at + i] = r[result];
#ifdef ALSO
        also[also_at + i] = r[kept];
#endif
    }
}
