// A chain of elementwise functions.  Registers hold four operands and then the results, one per instruction, whose code
// says which function (numbered as in ag/chain.py) and which registers it reads: function << 16 | x << 8 | y.  Codes
// are specialization constants, so a driver compiles the chain and not the choice.  The kernel has the functions'
// numbers in its Args, as value; where it has tiles, too, their constants come first.
#include "functions.glsl"
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

float apply(uint function, float x, float y, float value) {
    switch (function) {
    case 1: return add_of(x, y);
    case 2: return sub_of(x, y);
    case 3: return mul_of(x, y);
    case 4: return div_of(x, y);
    case 5: return scale_of(x, value);
    case 6: return relu_of(x);
    case 7: return relu_grad_of(x, y);
    case 8: return sigmoid_of(x);
    case 9: return sigmoid_grad_of(x, y);
    case 10: return tanh_of(x);
    case 11: return tanh_grad_of(x, y);
    case 12: return gelu_of(x);
    case 13: return gelu_grad_of(x, y);
    case 14: return gelu_tanh_of(x);
    case 15: return gelu_tanh_grad_of(x, y);
    case 16: return silu_of(x);
    case 17: return silu_grad_of(x, y);
    case 18: return leaky_relu_of(x, value);
    case 19: return leaky_relu_grad_of(x, y, value);
    case 20: return exp_of(x);
    case 21: return log_of(x);
    case 22: return sqrt_of(x);
    case 23: return abs_of(x);
    default: return abs_grad_of(x, y);
    }
}

float r[GIVEN + 6];

// Fills the registers behind the operands.
void run_chain() {
    const uint ops[6] = { op1, op2, op3, op4, op5, op6 };
    for (uint k = 0; k < 6; k++)
        if (ops[k] != 0) r[GIVEN + k] = apply(ops[k] >> 16, r[ops[k] >> 8 & 255], r[ops[k] & 255], value[k]);
}
