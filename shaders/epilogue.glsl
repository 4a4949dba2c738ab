// A chain of functions of the elements of a product and of up to three operands more, before they are stored.  An
// operand has the shape of the result seen as a matrix [rows, cols], or 1 where it repeats.
// The kernel has EPILOGUE in its Args, and there cols, too, or defines COLS before including this.
#ifndef COLS
#define COLS cols
#endif
#ifdef ALSO
layout(set = 0, binding = 4) readonly buffer C_ { float c[]; };
layout(set = 0, binding = 5) readonly buffer D_ { float d[]; };
layout(set = 0, binding = 6) readonly buffer E_ { float e[]; };
#else
layout(set = 0, binding = 3) readonly buffer C_ { float c[]; };
layout(set = 0, binding = 4) readonly buffer D_ { float d[]; };
layout(set = 0, binding = 5) readonly buffer E_ { float e[]; };
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
    r[1] = c[c_at + word_of(c_along, row, col)];
    r[2] = d[d_at + word_of(d_along, row, col)];
    r[3] = e[e_at + word_of(e_along, row, col)];
    run_chain();
    return r[result];
}
