// Where attention_grad writes what it sends back to queries, keys and values; later pieces add to what is there.
NUMBERS(0, , Dq, dq)
QUADS(0, , Dq, dq)
NUMBERS(1, , Dk, dk)
QUADS(1, , Dk, dk)
NUMBERS(2, , Dv, dv_)
QUADS(2, , Dv, dv)

#define ADDED(x, number, first) { \
    const float sum = piece > 0 ? NUMBER(x, number, first, at) + value : value; \
    PUT_ALONE(x, number, FIRST_OF(number, first) + at, sum) \
}
void put(uint operand, uint f, uint t, float value) {
    if (!inside(operand, f, t)) return;
    const uint at = place_of(operand, f, t);
    if (operand == Q) ADDED(dq, 0, dq_at)
    else if (operand == K) ADDED(dk, 1, dk_at)
    else ADDED(dv_, 2, dv_at)
}

#define ADDED_QUAD(x, number, first) { \
    const uint at = FIRST_OF(number, first) + i; \
    PUT_QUAD(x, number, at, piece > 0 ? QUAD(x, number, at) + values : values) \
}
void put_quad(uint operand, uint f, uint t, vec4 values) {
    if (!inside(operand, f, t)) return;
    const uint i = place_of(operand, f, t);
    if (operand == Q) ADDED_QUAD(dq, 0, dq_at)
    else if (operand == K) ADDED_QUAD(dk, 1, dk_at)
    else ADDED_QUAD(dv, 2, dv_at)
}
