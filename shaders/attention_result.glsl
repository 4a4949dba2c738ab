// Where attention writes its result.  Later pieces of keys add to what is there, which join() had them multiply.
void put(uint operand, uint f, uint t, float value) {
    if (f >= dv || t >= queries) return;
    const uint at = out_at + place(q_head, dv, queries, f, t), r = t % ROWS;
    out_[at] = piece > 0 ? out_[at] * shrink[r / 4][r % 4] + value : value;
}

void put_quad(uint operand, uint f, uint t, vec4 values) {
    if (f >= dv || t >= queries) return;
    const uint at = (out_at + place(q_head, dv, queries, f, t)) / 4;
    out_quads[at] = piece > 0 ? out_quads[at] * shrink[t % ROWS / 4] + values : values;
}
