// Rotary positions, as in shaders/rope.glsl: sines and cosines of a pair's angles are computed once for all heads.
#include "rows.h"

enum { PLACES = 256 };  // times and samples, at a time

// Turns rows of n numbers, a pair for each of `heads`, of which `next` is as far away; single rows are copied.
static void turn_rows(float *out, int of_out, const float *x, int of_x, int64_t at, int64_t heads, int64_t next, int64_t far,
                      int64_t n, const float *sine, const float *cosine) {
    ALIGNED float from[2][PLACES], made[2][PLACES];
    for (int64_t h = 0; h < heads; h++, at += next) {
        float *near = room(out, of_out, at, made[0]), *other = room(out, of_out, at + far, made[1]);
        if (far) {
            const float *first = wide(x, of_x, at, n, from[0]), *second = wide(x, of_x, at + far, n, from[1]);
            EACH(i, n) {
                const float a = first[i], b = second[i];
                near[i] = a * cosine[i] - b * sine[i];
                other[i] = a * sine[i] + b * cosine[i];
            }
            kept(out, of_out, at + far, n, other);
        } else take_floats(near, x, of_x, at, n);
        kept(out, of_out, at, n, near);
    }
}

static void sines(float *sine, float *cosine, const int32_t *position, int64_t n, const uint32_t *frequency,
                  float factor, float way) {
    const uint32_t low = frequency[0], high = frequency[1];
    EACH(i, n) {
        const uint32_t p = (uint32_t)position[i];
        const uint32_t turn = p * high + (uint32_t)((uint64_t)p * low >> 32) - (position[i] < 0 ? low : 0);
        const uint32_t quadrant = (turn + 0x20000000u) >> 30;
        const float r = (float)(int32_t)(turn - (quadrant << 30)) * 1.4629180792671596e-9f, z = r * r;
        const float s = r - r * z * (1.6666654611e-1f - z * (8.3321608736e-3f - z * 1.9515295891e-4f));
        const float c = z * z * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f)
                        - 0.5f * z + 1.0f;
        const float size = quadrant & 2 ? -factor : factor;
        sine[i] = (quadrant & 1 ? c : s) * size * way;
        cosine[i] = (quadrant & 1 ? -s : c) * size;
    }
}

KERNEL(rope_pair, {
    number *out; number *also; const number *x; const number *y; const int32_t *positions; const uint32_t *frequencies;
    int64_t heads; int64_t more; int64_t times; int64_t batch; int64_t counted; int64_t time_step; int64_t batch_step;
    int64_t dim; int64_t rotary; int64_t interleaved; int64_t offset; double factor; double way; int64_t types;
}) {
    const int64_t inner = a->times * a->batch, pairs = a->rotary / 2, next = a->dim * inner;
    const span s = share(a->dim - pairs, 1, part, parts);
    const int types[] = {type_of(a->types, 0), type_of(a->types, 1), type_of(a->types, 2), type_of(a->types, 3)};
    int32_t position[PLACES];
    float sine[PLACES], cosine[PLACES];
    for (int64_t at = 0; at < inner; at += PLACES) {
        const int64_t n = least(PLACES, inner - at);
        for (int64_t i = 0; i < n; i++) {
            const int64_t time = (at + i) / a->batch, b = (at + i) % a->batch;
            const int32_t given = a->positions[time * a->time_step + b * a->batch_step];
            position[i] = (int32_t)(a->offset + a->counted * time + given);
        }
        for (int64_t slot = s.begin; slot < s.end; slot++) {
            const int64_t feature = slot >= pairs ? pairs + slot : a->interleaved ? 2 * slot : slot;
            const int64_t far = slot >= pairs ? 0 : (a->interleaved ? 1 : pairs) * inner, first = feature * inner + at;
            if (far) sines(sine, cosine, position, n, a->frequencies + 2 * slot, (float)a->factor, (float)a->way);
            turn_rows(a->out, types[0], a->x, types[2], first, a->heads, next, far, n, sine, cosine);
            if (a->more) turn_rows(a->also, types[1], a->y, types[3], first, a->more, next, far, n, sine, cosine);
        }
    }
}

KERNEL(rope, {
    number *out; const number *x; const int32_t *positions; const uint32_t *frequencies; int64_t heads; int64_t times;
    int64_t batch; int64_t counted; int64_t time_step; int64_t batch_step; int64_t dim; int64_t rotary;
    int64_t interleaved; int64_t offset; double factor; double way; int64_t types;
}) {
    const rope_pair_args alone = {
        a->out, NULL, a->x, NULL, a->positions, a->frequencies, a->heads, 0, a->times, a->batch, a->counted,
        a->time_step, a->batch_step, a->dim, a->rotary, a->interleaved, a->offset, a->factor, a->way,
        (a->types & 3) | (a->types & 12) << 2};
    ag_rope_pair(&alone, part, parts);
}
