// A chain of elementwise functions.  Registers hold four operands and then the results, one per instruction, whose code
// says which function and which registers it reads: function << 16 | x << 8 | y.  apply.glsl, which kernels_build.py
// writes, knows functions by number.  Codes are specialization constants, so a driver compiles the chain and not the
// choice.
// Some drivers unroll no loop unless they are asked to, and would choose among all functions at every step.
// The kernel asks for GL_EXT_control_flow_attributes, and has the functions' parameters in its Args, as value; where it
// has tiles, too, their constants come first.
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

// Fills the registers behind the operands.
void run_chain() {
    const uint ops[6] = { op1, op2, op3, op4, op5, op6 };
    [[unroll]] for (uint k = 0; k < 6; k++)
        if (ops[k] != 0) r[GIVEN + k] = apply(ops[k] >> 16, r[ops[k] >> 8 & 255], r[ops[k] & 255], value[k]);
}
