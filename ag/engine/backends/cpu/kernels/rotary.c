// Rotary positions, as in shaders/rope.glsl: sines and cosines of a pair's angles are computed once for all heads.
#include "rows.h"

enum { PLACES = 256 };  // times and samples, at a time

typedef struct {
    const int32_t *positions; const uint32_t *frequencies;
    int64_t times, batch, counted, time_step, batch_step, dim, rotary, interleaved, offset;
    float factor, way;
} rotation;

// Turns rows of n numbers, a pair for each of `heads`, of which `next` is as far away; single rows are copied.
static void turn_rows(float *out, const float *x, int64_t heads, int64_t next, int64_t far, int64_t n,
                      const float *sine, const float *cosine) {
    for (int64_t h = 0; h < heads; h++, out += next, x += next) {
        if (far) EACH(i, n) {
            const float a = x[i], b = x[far + i];
            out[i] = a * cosine[i] - b * sine[i];
            out[far + i] = a * sine[i] + b * cosine[i];
        }
        else memcpy(out, x, (size_t)n * sizeof *x);
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

static void turn(float *out, const float *x, int64_t heads, float *also, const float *y, int64_t more, rotation r,
                 int64_t part, int64_t parts) {
    const int64_t inner = r.times * r.batch, pairs = r.rotary / 2, next = r.dim * inner;
    const span s = share(r.dim - pairs, 1, part, parts);
    int32_t position[PLACES];
    float sine[PLACES], cosine[PLACES];
    for (int64_t at = 0; at < inner; at += PLACES) {
        const int64_t n = least(PLACES, inner - at);
        for (int64_t i = 0; i < n; i++) {
            const int64_t time = (at + i) / r.batch, b = (at + i) % r.batch;
            position[i] = (int32_t)(r.offset + r.counted * time + r.positions[time * r.time_step + b * r.batch_step]);
        }
        for (int64_t slot = s.begin; slot < s.end; slot++) {
            const int64_t feature = slot >= pairs ? pairs + slot : r.interleaved ? 2 * slot : slot;
            const int64_t far = slot >= pairs ? 0 : (r.interleaved ? 1 : pairs) * inner, first = feature * inner + at;
            if (far) sines(sine, cosine, position, n, r.frequencies + 2 * slot, r.factor, r.way);
            turn_rows(out + first, x + first, heads, next, far, n, sine, cosine);
            if (more) turn_rows(also + first, y + first, more, next, far, n, sine, cosine);
        }
    }
}

#define ROTATION \
    {a->positions, a->frequencies, a->times, a->batch, a->counted, a->time_step, a->batch_step, a->dim, a->rotary, \
     a->interleaved, a->offset, (float)a->factor, (float)a->way}

KERNEL(rope, {
    float *out; const float *x; const int32_t *positions; const uint32_t *frequencies; int64_t heads; int64_t times;
    int64_t batch; int64_t counted; int64_t time_step; int64_t batch_step; int64_t dim; int64_t rotary;
    int64_t interleaved; int64_t offset; double factor; double way;
}) { turn(a->out, a->x, a->heads, NULL, NULL, 0, (rotation)ROTATION, part, parts); }

KERNEL(rope_pair, {
    float *out; float *also; const float *x; const float *y; const int32_t *positions; const uint32_t *frequencies;
    int64_t heads; int64_t more; int64_t times; int64_t batch; int64_t counted; int64_t time_step; int64_t batch_step;
    int64_t dim; int64_t rotary; int64_t interleaved; int64_t offset; double factor; double way;
}) { turn(a->out, a->x, a->heads, a->also, a->y, a->more, (rotation)ROTATION, part, parts); }
