// How operands are walked along the axes of out, of which axis 0 is the innermost.  With q[0] = i for element i, and
// q[axis] = q[axis - 1] / (the size of axis - 1), an operand moves by a step for each q:
//     word = at + q[0] step[0] + q[1] step[1] + ...
// A step is the stride along the axis, less what the axis inside of it has moved: so there is no remainder, and no
// quotient where there is one axis.  The backend computes them (ag/engine/backends/shader/plans.py).
// A loop over axes says that they are at most MAX_DIMS, so that drivers can unroll it.
#include "quotient.glsl"

// q[axis] of q[axis - 1]; a word has four shifts.
#define NEXT(q, axis) quotient(q, multipliers[axis - 1], shifts[(axis - 1) / 4] >> 8 * ((axis - 1) % 4) & 31)
