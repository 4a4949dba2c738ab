// Loading of numbers that are stored otherwise than in float32 (stored.h), and rows of a packed table by ids.
// contract: a product and a sum may become one operation (ag.h)
#include "stored.h"

float ag_number(const operand *x, int64_t i) {
    if (in_blocks(x)) {
        ALIGNED float block[BLOCK_OF];
        ag_load(block, x, i / BLOCK_OF * BLOCK_OF, BLOCK_OF);
        return block[i % BLOCK_OF];
    }
    if (x->type == F32) return ((const float *)x->at)[i];
    const uint16_t h = ((const uint16_t *)x->at)[x->first + i];
    return x->type == BF16 ? float_of((uint32_t)h << 16) : of_half(h);
}

INLINE void load_all(int type, float *to, int64_t pitch, const operand *x, int64_t first, int64_t rows, int64_t count) {
    reg some[BLOCK_OF];
    for (; rows > 0; rows--, to += pitch, first += x->step) {
        int64_t i = 0;
        for (; i + AT_A_TIME(type) <= count; i += AT_A_TIME(type)) {
            load_regs(type, x, x->first + first + i, some);
            for (int j = 0; j < AT_A_TIME(type) / WIDTH; j++) put(to + i + j * WIDTH, some[j]);
        }
        for (; type < Q8_0 && i < count; i++) to[i] = ag_number(x, first + i);
    }
}

void ag_load_rows(float *to, int64_t pitch, const operand *x, int64_t first, int64_t rows, int64_t count) {
    OF_TYPE(x, load_all, to, pitch, x, first, rows, count)
}

enum { SOME = 16, LINE = 128 };  // places, and their features, that are turned at a time

// work: features * places
KERNEL(gather_rows, {
    float *out; const uint32_t *words; const int32_t *ids;
    int64_t length; int64_t features; int64_t places; int64_t type; int64_t planes[3];
}) {
    const operand table = packed(a->words, a->features, 0, a->type, a->planes);
    const int64_t tall = (a->features + LINE - 1) / LINE, wide = (a->places + SOME - 1) / SOME;
    const span s = share(tall * wide, 1, part, parts);
    ALIGNED float lines[SOME * LINE];
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t f = i % tall * LINE, p = i / tall * SOME;
        const int64_t features = least(LINE, a->features - f), count = least(SOME, a->places - p);
        for (int64_t k = 0; k < count; k++) {
            const int64_t id = a->ids[p + k];
            float *line = lines + k * LINE;
            if (id >= 0 && id < a->length) ag_load(line, &table, id * a->features + f, features);
            else for (int64_t j = 0; j < features; j++) line[j] = id == INT32_MIN ? 0.0f : float_of(0x7FC00000u);
        }
        ag_turn(a->out + f * a->places + p, a->places, lines, LINE, count, features);
    }
}
