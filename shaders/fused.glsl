// out[i] = the result of a chain of functions of a, b, c and d, which are walked along the axes of out with steps of
// their own; with ALSO, another of the chain's registers goes to also[i].
#define TURNS 7
#include "turns.glsl"
#include "walk.glsl"
#define MAX_DIMS 3
#define TYPES 8
#include "numbers.glsl"

#ifdef ALSO
layout(constant_id = 9) const uint kept = 4;  // the register that becomes also
#define A_BINDING 2
#define OUTS 15u  // bits of `types` of the results
#else
#define A_BINDING 1
#define OUTS 3u
#endif
layout(push_constant) uniform Args {
    uint n, ndim, out_at, a_at, b_at, c_at, d_at;
#ifdef ALSO
    uint also_at;
#endif
    float value[6];
    uint multipliers[2], shifts[1], a_step[MAX_DIMS], b_step[MAX_DIMS], c_step[MAX_DIMS], d_step[MAX_DIMS];
};
NUMBERS(0, , Out, out_)
#ifdef ALSO
NUMBERS(1, , Also, also)
#endif
NUMBERS(A_BINDING, readonly, A, a)
NUMBERS(A_BINDING + 1, readonly, B, b)
NUMBERS(A_BINDING + 2, readonly, C, c)
NUMBERS(A_BINDING + 3, readonly, D, d)
#include "chain.glsl"

void run(uint i) {
    uint q = i, a_i = i * a_step[0], b_i = i * b_step[0], c_i = i * c_step[0], d_i = i * d_step[0];
    for (uint axis = 1; axis < MAX_DIMS; axis++) {
        if (axis >= ndim) break;
        q = NEXT(q, axis);
        a_i += q * a_step[axis];
        b_i += q * b_step[axis];
        c_i += q * c_step[axis];
        d_i += q * d_step[axis];
    }
    r[0] = NUMBER(a, A_BINDING, a_at, a_i);
    r[1] = NUMBER(b, A_BINDING + 1, b_at, b_i);
    r[2] = NUMBER(c, A_BINDING + 2, c_at, c_i);
    r[3] = NUMBER(d, A_BINDING + 3, d_at, d_i);
    run_chain();
}

void main() {
    uint word, also_word;
    for (uint turn = 0; turn < turns * IN_A_ROW(OUTS); turn++) {
        const uint i = PLACE(turn, OUTS);
        if (i >= n) return;
        run(i);
        PUT(out_, 0, out_at, i, n, r[result], word)
#ifdef ALSO
        PUT(also, 1, also_at, i, n, r[kept], also_word)
#endif
    }
}
