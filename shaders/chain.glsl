// The instructions of a chain of elementwise functions.  Registers hold the operands a, b, c, d and then the results,
// one per instruction, whose code says which function (numbered as in ag/chain.py) and which registers it reads:
// function << 16 | x << 8 | y.  Codes are specialization constants, so a driver compiles the chain and not the choice.
#include "functions.glsl"
#define OPERANDS 4

layout(constant_id = 0) const uint op1 = 0;
layout(constant_id = 1) const uint op2 = 0;
layout(constant_id = 2) const uint op3 = 0;
layout(constant_id = 3) const uint op4 = 0;
layout(constant_id = 4) const uint op5 = 0;
layout(constant_id = 5) const uint op6 = 0;

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

float r[OPERANDS + 6];
