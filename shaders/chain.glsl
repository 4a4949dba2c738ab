// A chain of elementwise functions.  Registers hold four operands and then the results, one per instruction, whose code
// says which function and which registers it reads: function << 16 | x << 8 | y.  apply.glsl, which kernels_build.py
// writes, knows functions by number.  Codes are specialization constants, so a driver compiles the chain and not the
// choice.
// The steps are written out: some drivers unroll no loop, and would choose among all functions at every step; and
// spirv-opt, which does, takes `precise` from what it copies.
// The kernel has the functions' parameters in its Args, as value; where it has tiles, too, their constants come first.
#include "apply.glsl"
#define GIVEN 4

#ifdef TILES
#define CODE(alone, behind_tiles) layout(constant_id = behind_tiles) const uint
#else
#define CODE(alone, behind_tiles) layout(constant_id = alone) const uint
#endif
CODE(0, 8) op1 = 0;
CODE(1, 9) op2 = 0;
CODE(2, 10) op3 = 0;
CODE(3, 11) op4 = 0;
CODE(4, 12) op5 = 0;
CODE(5, 13) op6 = 0;
CODE(6, 14) result = 4;  // the register that is the chain's result

float r[GIVEN + 6];
#define STEP(k, op) if (op != 0) r[GIVEN + k] = apply(op >> 16, r[op >> 8 & 255], r[op & 255], value[k]);

// Fills the registers behind the operands.
void run_chain() {
    STEP(0, op1)
    STEP(1, op2)
    STEP(2, op3)
    STEP(3, op4)
    STEP(4, op5)
    STEP(5, op6)
}
