// out[i] = the result of a chain of functions of a, b, c and d, which are walked along the axes of out with strides of
// their own; with ALSO, another of the chain's registers goes to also[i].
#define TURNS 7
#include "turns.glsl"
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
    uint shape[MAX_DIMS], a_stride[MAX_DIMS], b_stride[MAX_DIMS], c_stride[MAX_DIMS], d_stride[MAX_DIMS];
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
        uint rest = i, a_i = a_at, b_i = b_at, c_i = c_at, d_i = d_at;
        for (uint axis = ndim; axis-- > 0;) {
            const uint k = rest % shape[axis];
            rest /= shape[axis];
            a_i += k * a_stride[axis];
            b_i += k * b_stride[axis];
            c_i += k * c_stride[axis];
            d_i += k * d_stride[axis];
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
