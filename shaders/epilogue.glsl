// A chain of functions of the elements of a product and of up to three operands more, before they are stored.  An
// operand has the shape of the result seen as a matrix [rows, cols], or 1 where it repeats.
// The kernel has EPILOGUE in its Args, and there cols, too, or defines COLS before including this.
#ifndef COLS
#define COLS cols
#endif
#ifdef ALSO
#define C_BINDING 4
#else
#define C_BINDING 3
#endif
#ifdef NUMBERS  // they may have 16 bits
NUMBERS(C_BINDING, readonly, C, c)
NUMBERS(C_BINDING + 1, readonly, D, d)
NUMBERS(C_BINDING + 2, readonly, E, e)
#else
#define NUMBER(x, number, at, i) x[(at) + (i)]
layout(set = 0, binding = C_BINDING) readonly buffer C_ { float c[]; };
layout(set = 0, binding = C_BINDING + 1) readonly buffer D_ { float d[]; };
layout(set = 0, binding = C_BINDING + 2) readonly buffer E_ { float e[]; };
#endif
#include "chain.glsl"

const uint ALONG_COLS = 1, ALONG_ROWS = 2;  // what an operand does not repeat along
CODE(7, 15) c_along = 0;
CODE(8, 16) d_along = 0;
CODE(9, 17) e_along = 0;

uint word_of(uint along, uint row, uint col) {
    const uint step = (along & ALONG_COLS) != 0 ? COLS : 1;
    return ((along & ALONG_ROWS) != 0 ? row * step : 0) + ((along & ALONG_COLS) != 0 ? col : 0);
}

float register_of(uint i) { return r[i]; }

float chained(uint row, uint col, float element) {
    r[0] = element;
    r[1] = NUMBER(c, C_BINDING, c_at, word_of(c_along, row, col));
    r[2] = NUMBER(d, C_BINDING + 1, d_at, word_of(d_along, row, col));
    r[3] = NUMBER(e, C_BINDING + 2, e_at, word_of(e_along, row, col));
    run_chain();
    return r[result];
}
