// Where attention writes its result.  Later pieces of keys add to what is there, which join() had them multiply.
void put(uint operand, uint f, uint t, float value) {
    if (f >= dv || t >= queries) return;
    const uint at = place(q_head, dv, queries, f, t), r = t % ROWS;
    const float sum = piece > 0 ? NUMBER(out_, 0, out_at, at) * shrink[r / 4][r % 4] + value : value;
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + at, sum)
}

void put_quad(uint operand, uint f, uint t, vec4 values) {
    if (f >= dv || t >= queries) return;
    const uint at = FIRST_OF(0, out_at) + place(q_head, dv, queries, f, t);
    PUT_QUAD(out, 0, at, piece > 0 ? QUAD(out, 0, at) * shrink[t % ROWS / 4] + values : values)
}
