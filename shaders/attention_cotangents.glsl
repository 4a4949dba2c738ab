// Where attention_grad writes what it sends back to queries, keys and values; later pieces add to what is there.
#define ADDED(buffer, at, value) buffer[at] = piece > 0 ? buffer[at] + value : value
void put(uint operand, uint f, uint t, float value) {
    if (!inside(operand, f, t)) return;
    if (operand == Q) ADDED(dq, dq_at + place(q_head, d, queries, f, t), value);
    else if (operand == K) ADDED(dk, dk_at + place(kv_head, d, keys, f, t), value);
    else ADDED(dv_, dv_at + place(kv_head, dv, keys, f, t), value);
}

void put_quad(uint operand, uint f, uint t, vec4 values) {
    if (!inside(operand, f, t)) return;
    if (operand == Q) ADDED(dq_quads, (dq_at + place(q_head, d, queries, f, t)) / 4, values);
    else if (operand == K) ADDED(dk_quads, (dk_at + place(kv_head, d, keys, f, t)) / 4, values);
    else ADDED(dv_quads, (dv_at + place(kv_head, dv, keys, f, t)) / 4, values);
}
