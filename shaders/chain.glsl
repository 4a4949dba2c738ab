// A chain of elementwise functions.  Registers hold four operands and then the results, one per instruction, whose code
// says which function (numbered as in ag/engine/kernels/fused.py) and which registers it reads:
// function << 16 | x << 8 | y.  Codes are specialization constants, so a driver compiles the chain and not the choice.
// The kernel has the functions' numbers in its Args, as value; where it has tiles, too, their constants come first.
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
    float found = 0.0;  // no switch: lavapipe takes three times as long for one
    if (function == 1) found = add_of(x, y);
    if (function == 2) found = sub_of(x, y);
    if (function == 3) found = mul_of(x, y);
    if (function == 4) found = div_of(x, y);
    if (function == 5) found = scale_of(x, value);
    if (function == 6) found = relu_of(x);
    if (function == 7) found = relu_grad_of(x, y);
    if (function == 8) found = sigmoid_of(x);
    if (function == 9) found = sigmoid_grad_of(x, y);
    if (function == 10) found = tanh_of(x);
    if (function == 11) found = tanh_grad_of(x, y);
    if (function == 12) found = gelu_of(x);
    if (function == 13) found = gelu_grad_of(x, y);
    if (function == 14) found = gelu_tanh_of(x);
    if (function == 15) found = gelu_tanh_grad_of(x, y);
    if (function == 16) found = silu_of(x);
    if (function == 17) found = silu_grad_of(x, y);
    if (function == 18) found = leaky_relu_of(x, value);
    if (function == 19) found = leaky_relu_grad_of(x, y, value);
    if (function == 20) found = exp_of(x);
    if (function == 21) found = log_of(x);
    if (function == 22) found = sqrt_of(x);
    if (function == 23) found = abs_of(x);
    if (function == 24) found = abs_grad_of(x, y);
    return found;
}

float r[GIVEN + 6];

// Fills the registers behind the operands.
void run_chain() {
    const uint ops[6] = { op1, op2, op3, op4, op5, op6 };
    for (uint k = 0; k < 6; k++)
        if (ops[k] != 0) r[GIVEN + k] = apply(ops[k] >> 16, r[ops[k] >> 8 & 255], r[ops[k] & 255], value[k]);
}
