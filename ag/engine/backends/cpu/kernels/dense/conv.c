// Convolution, and the gradient that flows to its image: every place adds up what it sees by the taps of all channels.
// Both are one walk: a row of places sees some rows of the other tensor, which lie packed in a ring (conv.h), and a tile
// of features or channels and of lanes adds up products in registers, channel by channel and tap by tap.
// contract: a product and a sum may become one operation (ag.h)
#include "conv.h"

// Floats of a ring, about; samples that are packed together; floats that are read from a near cache.
enum { RING = 1 << 17, MOST_SAMPLES = 64, NEAR = 1 << 12 };

typedef struct {
    number *out;
    const number *in, *w;
    int of_out, of_in, of_w;  // types (halves.h)
    int64_t outs, ins, w_out, w_in;  // channels of a group, and the floats from one's weights to the next's
    const int64_t *out_size, *in_size;
    int64_t batch;
    axis down, across;
    int scatters;  // whether what taps would see in padding is left out, and not 0 times a weight, as in the numpy text
} walk;

// What a tap multiplies: weights, and lanes of the ring.
typedef struct { int64_t weight, lanes; } tap;

static int64_t taps_of(const walk *c) { return c->down.kernel * c->across.kernel; }

// The element at which a row of places begins.
static int64_t place_of(const walk *c, int64_t channel, int64_t y) {
    return (channel * c->out_size[0] + y) * c->out_size[1] * c->batch;
}

// ---------------------------------------------------------------------------------------------- tiles

// What a tile reads lies side by side: nothing, weights, or weights and lanes of all channels and taps, `count` of them.
// Where others need its lanes, the first one packs them on its way, as [channels seen, taps, WIDE].
enum { NOTHING, WEIGHTS, PACKING, ALL };

INLINE void tile(int rows, int regs, int packed, float *to, int64_t step, const walk *c, const float *w, const tap *taps,
                 int64_t count, const float *x, int64_t pitch, float *panel) {
    reg sum[TALL][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (reg){0};
    const int64_t row = packed ? 1 : c->w_out, channels = packed == ALL ? 1 : c->ins;
    const int64_t next = packed ? TALL * taps_of(c) : c->w_in;
    for (int64_t k = 0; k < channels; k++, w += next, x += pitch)
        for (int64_t t = 0; t < count; t++) {
            const float *a = w + (packed == ALL ? t : taps[t].weight) * (packed ? TALL : 1);
            const float *b = x + (packed == ALL ? t * WIDE : taps[t].lanes);
            const reg p = get(b), q = regs > 1 ? get(b + WIDTH) : p;
            if (packed == PACKING) {
                put(panel, p);
                put(panel + WIDTH, q);
                panel += WIDE;
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                sum[i][0] += a[i * row] * p;
                if (regs > 1) sum[i][1] += a[i * row] * q;
            }
        }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        put(to + i * step, sum[i][0]);
        if (regs > 1) put(to + i * step + WIDTH, sum[i][1]);
    }
}

#define ARGUMENTS float *to, int64_t step, const walk *c, const float *w, const tap *taps, int64_t count, \
                  const float *x, int64_t pitch, float *panel
#define GIVEN to, step, c, w, taps, count, x, pitch, panel

INLINE void tile_of_rows(int64_t rows, int regs, int packed, ARGUMENTS) { TILE_OF(rows, regs, packed, GIVEN); }

static __attribute__((noinline)) void wide_tile(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 2, NOTHING, GIVEN); }
static __attribute__((noinline)) void slim_tile(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 1, NOTHING, GIVEN); }
static __attribute__((noinline)) void wide_packed(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 2, WEIGHTS, GIVEN); }
static __attribute__((noinline)) void slim_packed(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 1, WEIGHTS, GIVEN); }
static __attribute__((noinline)) void packing(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 2, PACKING, GIVEN); }
static __attribute__((noinline)) void all_packed(int64_t rows, ARGUMENTS) { tile_of_rows(rows, 2, ALL, GIVEN); }

// Weights as [channels made / TALL, channels seen, taps, TALL].
static void pack_weights(float *to, const walk *c, span some, int64_t taps) {
    for (int64_t f = some.begin; f < some.end; f += TALL) {
        int64_t from[TALL];
        for (int64_t i = 0; i < TALL; i++) from[i] = least(f + i, some.end - 1) * c->w_out;
        for (int64_t k = 0; k < c->ins; k++)
            for (int64_t t = k * c->w_in; t < k * c->w_in + taps; t++, to += TALL)
#pragma GCC unroll 8
                for (int64_t i = 0; i < TALL; i++) to[i] = c->of_w ? number_at(c->w, c->of_w, from[i] + t) : c->w[from[i] + t];
    }
}

// ---------------------------------------------------------------------------------------------- rows of places

// Places `apart * (first + j) + r` of a row, and samples from `sample` on.
typedef struct { int64_t apart, r, first, samples, sample; } lanes;

// The element of lane n of a row that begins at one.
static int64_t lane_of(int64_t row, const lanes *l, int64_t batch, int64_t n) {
    return row + (l->apart * (l->first + n / l->samples) + l->r) * batch + l->sample + n % l->samples;
}

static void put_lanes(const walk *c, int64_t row, const lanes *l, int64_t n, int64_t count, const float *values) {
    for (int64_t m; count > 0; n += m, values += m, count -= m) {
        const int64_t at = lane_of(row, l, c->batch, n);
        m = least(l->samples - n % l->samples, count);
        if (c->of_out) kept(c->out, c->of_out, at, m, values);
        else memcpy(c->out + at, values, (size_t)m * sizeof *values);
    }
}

// The channels `some` of `n` lanes of row y.
static void make_lanes(const walk *c, span some, int64_t y, const lanes *l, int64_t n, const tap *taps, int64_t count,
                       const float *ring, int64_t pitch, const float *weights, float *panel) {
    const int64_t plane = c->out_size[0] * c->out_size[1] * c->batch;
    const int in_order = l->apart == 1 && l->samples == c->batch;
    float made[TALL * WIDE];
    for (int64_t at = 0; at < n; at += WIDE) {
        const int64_t wide = least(WIDE, n - at);
        const int beside = wide % WIDTH == 0 && (in_order || l->samples % wide == 0);  // lanes that lie side by side
        const int whole = beside && !c->of_out;  // and are stored by the tile
        const int packed = panel && count == taps_of(c) && (wide == WIDE || !beside);
        for (int64_t f = some.begin; f < some.end; f += TALL) {
            const int64_t tall = least(TALL, some.end - f), step = whole ? plane : WIDE;
            float *to = whole ? c->out + lane_of(place_of(c, f, y), l, c->batch, at) : made;
            const float *w = weights ? weights + (f - some.begin) * c->ins * taps_of(c) : c->w + f * c->w_out;
            if (packed && f > some.begin) all_packed(tall, to, step, c, w, taps, c->ins * count, panel, 0, NULL);
            else (packed ? packing : wide > WIDTH ? weights ? wide_packed : wide_tile : weights ? slim_packed : slim_tile)(
                tall, to, step, c, w, taps, count, ring + at, pitch, panel);
            for (int64_t i = 0; i < tall && !whole; i++)
                put_lanes(c, place_of(c, f + i, y), l, at, wide, made + i * WIDE);
        }
    }
}

// Rows `rows` of the channels `some`, at columns from `first` on and some samples; 0 where there is no memory.
static int make_rows(const walk *c, span some, span rows, int64_t first, int64_t columns, int64_t sample, int64_t samples) {
    const axis *down = &c->down, *across = &c->across;
    int64_t low, high;
    shifts(across, &low, &high);
    const int64_t apart = across->back ? across->stride : 1, count = columns + high - low;
    strip s = {c->ins, c->in_size[0], c->in_size[1], c->batch, across->back ? 1 : across->stride, first + low, count,
               samples, sample, pitch_of(count * samples), c->of_in};
    const int64_t pitch = s.pitch * s.steps, slot = pitch * c->ins;
    const int64_t slots = least((down->kernel - 1) * down->dilation + 1, c->in_size[0]);
    const int64_t all = taps_of(c), names = up(slots + 1, 8);
    // Rows that lie apart take longer to read than side by side: packing pays where many tiles read many of them.
    const int64_t made = up(some.end - some.begin, TALL), seen = c->ins * all, row = columns * samples;
    const int packs = c->of_w || (rows.end - rows.begin) * row >= 32 * WIDE;
    const int packs_lanes = packs && seen * WIDE >= NEAR && made >= 4 * TALL;
    float *memory = ag_scratch(slot * (slots + 1) + (int64_t)(sizeof(tap) / 4) * all + 2 * names +
                               (packs ? seen * (made + WIDE) : 0));
    if (!memory) return 0;
    int64_t *held = (int64_t *)memory;  // which row is in a slot; the last slot is for rows of padding
    tap *taps = (tap *)(held + names);
    float *panel = (float *)(taps + all), *weights = panel + seen * WIDE, *ring = packs ? weights + seen * made : panel;
    if (packs) pack_weights(weights, c, some, all);
    for (int64_t i = 0; i <= slots; i++) held[i] = -1;
    for (int64_t y = rows.begin; y < rows.end; y++)
        for (int64_t r = 0; r < apart; r++) {
            const int64_t end = least(first + columns, (c->out_size[1] - r + apart - 1) / apart);
            for (int64_t column = first, next; column < end; column = next) {  // as far as the same taps see something
                int64_t n = 0;
                next = end;
                for (int64_t i = 0; i < down->kernel; i++) {
                    int64_t shift, rest;
                    if (!sees(down, down->back ? y % down->stride : 0, i, &shift, &rest)) continue;
                    const int64_t row = down->back ? y / down->stride + shift : down->stride * (y + shift) + rest;
                    const int outside = row < 0 || row >= s.height;
                    const int64_t at = outside ? slots : row % slots, name = outside ? 0 : row;
                    for (int64_t j = 0; j < across->kernel; j++) {
                        if (!sees(across, r, j, &shift, &rest)) continue;
                        if (c->scatters) {
                            if (column < -shift) next = least(next, -shift);
                            if (outside || column < -shift || column >= s.width - shift) continue;
                            next = least(next, s.width - shift);
                        }
                        if (held[at] != name) {
                            pack_strip(ring + at * slot, c->in, &s, row);
                            held[at] = name;
                        }
                        taps[n++] = (tap){i * across->kernel + j, at * slot + rest * s.pitch + (shift - low) * samples};
                    }
                }
                const lanes l = {apart, r, column, samples, sample};
                make_lanes(c, some, y, &l, (next - column) * samples, taps, n, ring + (column - first) * samples, pitch,
                           packs ? weights : NULL, packs_lanes ? panel : NULL);
            }
        }
    return 1;
}

// The same without memory: the same bits, slowly.
static void make_rows_plainly(const walk *c, span some, span rows, int64_t first, int64_t columns, int64_t sample,
                              int64_t samples) {
    const axis *down = &c->down, *across = &c->across;
    const int64_t apart = across->back ? across->stride : 1, wide = c->in_size[1], high = c->in_size[0];
    for (int64_t f = some.begin; f < some.end; f++)
        for (int64_t y = rows.begin; y < rows.end; y++)
            for (int64_t x = apart * first; x < least(apart * (first + columns), c->out_size[1]); x++)
                for (int64_t b = sample; b < sample + samples; b++) {
                    float sum = 0.0f;
                    for (int64_t k = 0; k < c->ins; k++)
                        for (int64_t t = 0; t < down->kernel * across->kernel; t++) {
                            int64_t shift, rest, above, beside;
                            const int64_t i = t / across->kernel, j = t % across->kernel;
                            if (!sees(down, down->back ? y % down->stride : 0, i, &shift, &rest)) continue;
                            above = down->back ? y / down->stride + shift : down->stride * (y + shift) + rest;
                            if (!sees(across, across->back ? x % apart : 0, j, &shift, &rest)) continue;
                            beside = across->back ? x / apart + shift : across->stride * (x + shift) + rest;
                            const int seen = above >= 0 && above < high && beside >= 0 && beside < wide;
                            if (c->scatters && !seen) continue;
                            const int64_t at = ((k * high + above) * wide + beside) * c->batch + b;
                            sum += number_at(c->w, c->of_w, f * c->w_out + k * c->w_in + t) *
                                   (seen ? number_at(c->in, c->of_in, at) : 0.0f);
                        }
                    put_at(c->out, c->of_out, place_of(c, f, y) + x * c->batch + b, sum);
                }
}

// Part `part` of `parts`: rows of places, cut further into columns, samples and channels where these are many.
static void make_part(walk c, int64_t groups, int64_t step_w, int64_t part, int64_t parts) {
    const int64_t apart = c.across.back ? c.across.stride : 1, steps = c.across.back ? 1 : c.across.stride;
    const int64_t columns = (c.out_size[1] + apart - 1) / apart, height = c.out_size[0];
    const int64_t samples = least(c.batch, MOST_SAMPLES), extent = (c.down.kernel - 1) * c.down.dilation + 1;
    int64_t low, high;
    shifts(&c.across, &low, &high);
    int64_t wide = RING / (least(extent, c.in_size[0]) * c.ins * steps * (samples ? samples : 1) + 1) - (high - low);
    if (wide * samples < WIDE) wide = samples ? (WIDE + samples - 1) / samples : 1;
    wide = least(wide, columns);
    if (!columns || !height || !samples || !c.outs) return;
    const int64_t over = (columns + wide - 1) / wide, deep = (c.batch + samples - 1) / samples;
    const int64_t rows = groups * over * deep * height, tall = (c.outs + TALL - 1) / TALL;
    const int64_t cuts = least(tall, (parts + rows - 1) / rows), places = c.out_size[0] * c.out_size[1] * c.batch;
    const number *in = c.in, *w = c.w;
    number *out = c.out;
    const span s = share(rows * cuts, 2, part, parts);  // every part packs the rows around its own, and weights
    for (int64_t at = s.begin; at < s.end;) {
        const int64_t y = at % height, unit = at / height, end = least(height, y + s.end - at);
        const int64_t cut = unit % cuts, column = unit / cuts % over * wide, sample = unit / cuts / over % deep * samples;
        const int64_t group = unit / cuts / over / deep;
        c.in = from_at(in, c.of_in, group * c.ins * c.in_size[0] * c.in_size[1] * c.batch);
        c.out = to_at(out, c.of_out, group * c.outs * places);
        c.w = from_at(w, c.of_w, group * step_w);
        const span some = share(c.outs, TALL, cut, cuts), these = {y, end};
        const int64_t few = least(samples, c.batch - sample), beside = least(wide, columns - column);
        if (!make_rows(&c, some, these, column, beside, sample, few))
            make_rows_plainly(&c, some, these, column, beside, sample, few);
        at += end - y;
    }
}

// Whether places see one pixel each, so that a product of matrices does it.
static int is_product(const int64_t *kernel, const int64_t *stride, const int64_t *padding) {
    return kernel[0] == 1 && kernel[1] == 1 && stride[0] == 1 && stride[1] == 1 && padding[0] == 0 && padding[1] == 0;
}

// The convolution as that product, of weights or, `transposed`, of their transpose, with what is seen; `types` of the
// result, of that and of the weights.
static void multiply_pixels(number *out, const number *w, const number *in, const int *types, int64_t groups,
                            int64_t outs, int64_t ins, int64_t pixels, int transposed, int64_t part, int64_t parts) {
    for (int64_t i = 0; i < groups; i++) {
        const product p = {to_at(out, types[0], i * outs * pixels),
                           numbers(w, i * outs * ins, types[2], transposed ? outs : ins, transposed),
                           numbers(in, i * ins * pixels, types[1], pixels, 0), outs, pixels, ins, types[0]};
        ag_multiply(&p, part, parts);
    }
}

// work: rows * cols * inner * groups
KERNEL(conv2d, {
    number *out; const number *x; const number *w;
    int64_t batch; int64_t image[2]; int64_t places[2]; int64_t kernel[2]; int64_t stride[2]; int64_t padding[2];
    int64_t dilation[2]; int64_t channels; int64_t features; int64_t rows; int64_t cols; int64_t inner; int64_t groups;
    int64_t types;
}) {
    const int64_t taps = a->kernel[0] * a->kernel[1];
    const int types[] = {type_of(a->types, 0), type_of(a->types, 1), type_of(a->types, 2)};
    if (is_product(a->kernel, a->stride, a->padding)) {
        const int64_t pixels = a->places[0] * a->places[1] * a->batch;
        multiply_pixels(a->out, a->w, a->x, types, a->groups, a->features, a->channels, pixels, 0, part, parts);
        return;
    }
    const walk c = {a->out, a->x, a->w, types[0], types[1], types[2], a->features, a->channels, a->channels * taps, taps,
                    a->places, a->image, a->batch,
                    {a->kernel[0], a->dilation[0], a->stride[0], a->padding[0], 0},
                    {a->kernel[1], a->dilation[1], a->stride[1], a->padding[1], 0}, 0};
    make_part(c, a->groups, a->features * a->channels * taps, part, parts);
}

// work: rows * cols * inner * groups
KERNEL(conv2d_input_grad, {
    number *out; const number *w; const number *g;
    int64_t batch; int64_t image[2]; int64_t places[2]; int64_t kernel[2]; int64_t stride[2]; int64_t padding[2];
    int64_t dilation[2]; int64_t channels; int64_t features; int64_t rows; int64_t cols; int64_t inner; int64_t groups;
    int64_t types;
}) {
    const int64_t taps = a->kernel[0] * a->kernel[1];
    const int types[] = {type_of(a->types, 0), type_of(a->types, 2), type_of(a->types, 1)};
    if (is_product(a->kernel, a->stride, a->padding)) {
        const int64_t pixels = a->places[0] * a->places[1] * a->batch;
        multiply_pixels(a->out, a->w, a->g, types, a->groups, a->channels, a->features, pixels, 1, part, parts);
        return;
    }
    const walk c = {a->out, a->g, a->w, types[0], types[1], types[2], a->channels, a->features, taps, a->channels * taps,
                    a->image, a->places, a->batch,
                    {a->kernel[0], a->dilation[0], a->stride[0], a->padding[0], 1},
                    {a->kernel[1], a->dilation[1], a->stride[1], a->padding[1], 1},
                    a->stride[0] > 1 || a->stride[1] > 1 || a->padding[0] > (a->kernel[0] - 1) * a->dilation[0] ||
                        a->padding[1] > (a->kernel[1] - 1) * a->dilation[1]};
    make_part(c, a->groups, a->features * a->channels * taps, part, parts);
}
