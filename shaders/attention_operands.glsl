// The operands of attention and its gradients by number, their times and elements.
#define Q 0
#define K 1
#define V 2
#define G 3
#ifdef GRADIENT
#define ONE_OF(q, k, v, g) (operand == Q ? q : operand == K ? k : operand == V ? v : g)
#else
#define ONE_OF(q, k, v, g) (operand == Q ? q : operand == K ? k : v)
#endif

uint times_of(uint operand) { return operand == Q || operand == G ? queries : keys; }
uint features_of(uint operand) { return operand == V || operand == G ? dv : d; }
bool inside(uint operand, uint f, uint t) { return f < features_of(operand) && t < times_of(operand); }

uint place_of(uint operand, uint f, uint t) {
    return place(operand == Q || operand == G ? q_head : kv_head, features_of(operand), times_of(operand), f, t);
}
uint word_of(uint operand, uint i) { return ONE_OF(q_at, k_at, v_at, g_at) + (i >> min(TYPE_OF(GIVEN + operand), 1u)); }

float element(uint operand, uint f, uint t) {
    if (!inside(operand, f, t)) return 0.0;
    const uint i = place_of(operand, f, t), at = word_of(operand, i);
    if (TYPE_OF(GIVEN + operand) == 0u) return ONE_OF(q[at], k[at], v[at], g[at]);
    return wide(ONE_OF(qhalves[at], khalves[at], vhalves[at], ghalves[at]), i, TYPE_OF(GIVEN + operand));
}

vec4 quad(uint operand, uint f, uint t) {
    if (!inside(operand, f, t)) return vec4(0.0);
    const uint at = word_of(operand, place_of(operand, f, t));
    if (TYPE_OF(GIVEN + operand) == 0u)
        return ONE_OF(q_quads[at / 4], k_quads[at / 4], v_quads[at / 4], g_quads[at / 4]);
    return wide_quad(ONE_OF(q_half_quads[at / 2], k_half_quads[at / 2], v_half_quads[at / 2], g_half_quads[at / 2]),
                     TYPE_OF(GIVEN + operand));
}
