// The gradient of a convolution's weights: g [features, places] times what the taps see [places, channels and taps].
// Some rows of both lie packed (conv.h).  A tile of features, and of channels and their taps, adds up products lane by
// lane over these rows; then the lanes are added, all of a tile at once.  Where a sum is cut depends on sizes alone.
// contract: a product and a sum may become one operation (ag.h)
#include "conv.h"

#if WIDTH == 16
#define HIGH 4
#define BROAD 4
#elif WIDTH == 8
#define HIGH 2
#define BROAD 4
#else
#define HIGH 2
#define BROAD 2
#endif

enum { PACKED = 1 << 17, BLOCK = 64, ENOUGH = 1024 };  // floats; channels and features at a time; lanes of a tile's sum

typedef struct {
    float *out;
    const number *x, *g;
    int of_x, of_g;  // types (halves.h)
    int64_t features, channels, taps, batch;
    const int64_t *image, *places;
    axis down, across;
    int64_t begin, end;  // the places and samples that are added up
} slopes;

// The places of `rows` rows and `columns` columns, from the first of each on.
typedef struct { int64_t y, rows, column, columns; } region;

// ---------------------------------------------------------------------------------------------- tiles

typedef struct {
    const float *g[HIGH], *x[BROAD];
    int64_t step_g, step_x;  // from row to row
} tile;

// The sums of g x over lanes `from[r]` to `to[r]` of every row r; lane i * BROAD + j has that of g[i] and x[j].
static reg tile_of(const tile *t, int64_t rows, const int64_t *from, const int64_t *to) {
    reg sum[WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) sum[i] = (reg){0};
#define LANE(l, m) l
    const mask lane = {LANES_OF(LANE, 0)};
#undef LANE
    for (int64_t r = 0; r < rows; r++) {
        int64_t n = from[r];
        const float *g[HIGH], *x[BROAD];
#pragma GCC unroll 4
        for (int i = 0; i < HIGH; i++) g[i] = t->g[i] + r * t->step_g;
#pragma GCC unroll 4
        for (int j = 0; j < BROAD; j++) x[j] = t->x[j] + r * t->step_x;
        for (; n + WIDTH <= to[r]; n += WIDTH) {
            reg seen[BROAD];
#pragma GCC unroll 4
            for (int j = 0; j < BROAD; j++) seen[j] = get(x[j] + n);
#pragma GCC unroll 4
            for (int i = 0; i < HIGH; i++) {
                const reg slope = get(g[i] + n);
#pragma GCC unroll 4
                for (int j = 0; j < BROAD; j++) sum[i * BROAD + j] += slope * seen[j];
            }
        }
        if (n == to[r]) continue;
        const mask some = lane < (int32_t)(to[r] - n);  // others may hold anything
        reg seen[BROAD];
#pragma GCC unroll 4
        for (int j = 0; j < BROAD; j++) seen[j] = (reg)((mask)get(x[j] + n) & some);
#pragma GCC unroll 4
        for (int i = 0; i < HIGH; i++) {
            const reg slope = (reg)((mask)get(g[i] + n) & some);
#pragma GCC unroll 4
            for (int j = 0; j < BROAD; j++) sum[i * BROAD + j] += slope * seen[j];
        }
    }
#define ADD(m) \
    _Pragma("GCC unroll 8") for (int i = 0; i < m; i++) { \
        EXCHANGED(sum[i], sum[i + m], m, first, second); \
        sum[i] = first + second; \
    }
#if WIDTH > 8
    ADD(8)
#endif
#if WIDTH > 4
    ADD(4)
#endif
    ADD(2)
    ADD(1)
#undef ADD
    return sum[0];
}

// ---------------------------------------------------------------------------------------------- packed rows

static strip strip_of(const slopes *s, const region *at, int64_t channels) {
    int64_t low, high;
    shifts(&s->across, &low, &high);
    const int64_t count = at->columns + high - low;
    return (strip){channels, s->image[0], s->image[1], s->batch, s->across.stride, at->column + low, count, s->batch, 0,
                   pitch_of(count * s->batch), s->of_x};
}

static int64_t seen_rows(const slopes *s, int64_t rows) {
    return (rows - 1) * s->down.stride + (s->down.kernel - 1) * s->down.dilation + 1;
}

static int64_t size_of(const slopes *s, const region *at, int64_t channels, int64_t features) {
    const strip x = strip_of(s, at, channels);
    return seen_rows(s, at->rows) * channels * x.steps * x.pitch + at->rows * features * pitch_of(at->columns * s->batch);
}

// The region by which all places are walked over: the same for every part.
static region step_of(const slopes *s) {
    const int64_t channels = least(s->channels, BLOCK), features = least(s->features, BLOCK);
    region at = {0, 1, 0, s->places[1]};
    while (at.columns > 1 && at.columns * s->batch > ENOUGH / 4 && size_of(s, &at, channels, features) > PACKED)
        at.columns = (at.columns + 1) / 2;
    if (at.columns < s->places[1]) return at;
    while (at.rows < s->places[0] && at.rows * at.columns * s->batch < ENOUGH) {
        at.rows++;
        if (size_of(s, &at, channels, features) > PACKED) {
            at.rows--;
            break;
        }
    }
    return at;
}

// The sums over one region of some features, and of columns of [channels, taps]; `first` of all regions or added.
static void add_region(const slopes *s, const region *at, span features, span cols, float *memory, int first) {
    const int64_t channel = cols.begin / s->taps, channels = (cols.end - 1) / s->taps + 1 - channel;
    const int64_t count = features.end - features.begin;
    const strip x = strip_of(s, at, channels);
    const int64_t above = at->y * s->down.stride - s->down.padding, seen = seen_rows(s, at->rows);
    const int64_t length = at->columns * s->batch, image = s->image[0] * s->image[1] * s->batch;
    const int64_t wide = s->places[1] * s->batch, plane = s->places[0] * wide;
    const int whole = !s->of_g && (length | wide | s->begin) % WIDTH == 0;  // vectors end with rows of g, which stay where they are
    const int64_t step_x = channels * x.steps * x.pitch, pitch_g = whole ? plane : pitch_of(length);
    const int64_t step_g = whole ? wide : count * pitch_g;
    int64_t *from = (int64_t *)memory, *to = from + at->rows;
    float *gs = memory + up(4 * at->rows, 16), *xs = whole ? gs : gs + at->rows * step_g;
    const float *rows_g = whole ? s->g + features.begin * plane + (at->y * s->places[1] + at->column) * s->batch : gs;
    for (int64_t r = 0; r < seen; r++) pack_strip(xs + r * step_x, from_at(s->x, s->of_x, channel * image), &x, above + r);
    for (int64_t r = 0; r < at->rows; r++) {
        const int64_t place = ((at->y + r) * s->places[1] + at->column) * s->batch;  // of the row's first lane
        from[r] = place < s->begin ? least(s->begin - place, length) : 0;
        to[r] = place + length > s->end ? (s->end > place ? s->end - place : 0) : length;
        if (to[r] < from[r]) to[r] = from[r];
        for (int64_t f = 0; f < count && !whole; f++) {
            float *row = gs + r * step_g + f * pitch_g;
            take_floats(row, s->g, s->of_g, (features.begin + f) * plane + place, length);
            memset(row + length, 0, (size_t)(pitch_g - length) * sizeof *row);
        }
    }
    tile t = {.step_g = step_g, .step_x = s->down.stride * step_x};
    for (int64_t col = cols.begin; col < cols.end; col += BROAD) {
        for (int64_t j = 0; j < BROAD; j++) {
            const int64_t c = least(col + j, cols.end - 1), tap = c % s->taps;
            int64_t shift, rest;
            sees(&s->across, 0, tap % s->across.kernel, &shift, &rest);
            t.x[j] = xs + tap / s->across.kernel * s->down.dilation * step_x +
                     ((c / s->taps - channel) * x.steps + rest) * x.pitch + (shift - (x.first - at->column)) * s->batch;
        }
        for (int64_t f = 0; f < count; f += HIGH) {
            for (int64_t i = 0; i < HIGH; i++) t.g[i] = rows_g + least(f + i, count - 1) * pitch_g;
            float made[WIDTH];
            put(made, tile_of(&t, at->rows, from, to));
            for (int64_t i = 0; i < least(HIGH, count - f); i++) {
                float *out = s->out + (features.begin + f + i) * s->channels * s->taps + col;
                for (int64_t j = 0; j < least(BROAD, cols.end - col); j++)
                    out[j] = first ? made[i * BROAD + j] : out[j] + made[i * BROAD + j];
            }
        }
    }
}

// The sums of some features and columns, where there is no memory: slowly, and not with the same bits.
static void add_plainly(const slopes *s, span features, span cols) {
    for (int64_t f = features.begin; f < features.end; f++)
        for (int64_t c = cols.begin; c < cols.end; c++) {
            const int64_t tap = c % s->taps, wide = s->places[1] * s->batch, plane = s->places[0] * wide;
            const int64_t down = tap / s->across.kernel * s->down.dilation - s->down.padding;
            const int64_t across = tap % s->across.kernel * s->across.dilation - s->across.padding;
            double sum = 0.0;
            for (int64_t n = s->begin; n < s->end; n++) {
                const int64_t y = n / wide * s->down.stride + down, x = n % wide / s->batch * s->across.stride + across;
                const int is_seen = y >= 0 && y < s->image[0] && x >= 0 && x < s->image[1];
                const int64_t pixel = (c / s->taps * s->image[0] + y) * s->image[1] + x;
                const float seen = is_seen ? number_at(s->x, s->of_x, pixel * s->batch + n % s->batch) : 0.0f;
                sum += (double)(number_at(s->g, s->of_g, f * plane + n) * seen);
            }
            s->out[f * s->channels * s->taps + c] = (float)sum;
        }
}

static void add_up(const slopes *s, span features, span cols) {
    const int64_t wide = s->places[1] * s->batch;
    region at = step_of(s);
    const region step = at;
    const int64_t packed = size_of(s, &step, least(s->channels, BLOCK + 2), least(s->features, BLOCK));
    float *memory = ag_scratch(packed + 4 * step.rows + 64);
    if (!memory) {
        add_plainly(s, features, cols);
        return;
    }
    for (int64_t f = features.begin; f < features.end; f += BLOCK)
        for (int64_t c = cols.begin; c < cols.end; c += BLOCK * s->taps) {
            const span some = {f, least(f + BLOCK, features.end)}, these = {c, least(c + BLOCK * s->taps, cols.end)};
            int first = 1;
            for (at.y = s->begin / wide / step.rows * step.rows; at.y * wide < s->end; at.y += step.rows)
                for (at.column = 0; at.column < s->places[1]; at.column += step.columns, first = 0) {
                    at.rows = least(step.rows, s->places[0] - at.y);
                    at.columns = least(step.columns, s->places[1] - at.column);
                    add_region(s, &at, some, these, memory, first);
                }
        }
}

// work: rows * cols * inner * groups
KERNEL(conv2d_weight_grad, {
    float *out; const number *x; const number *g;
    int64_t batch; int64_t image[2]; int64_t places[2]; int64_t kernel[2]; int64_t stride[2]; int64_t padding[2];
    int64_t dilation[2]; int64_t channels; int64_t features; int64_t rows; int64_t cols; int64_t inner; int64_t groups;
    int64_t pieces; int64_t chunk; int64_t types;
}) {
    const int of_x = type_of(a->types, 1), of_g = type_of(a->types, 2);
    const int64_t taps = a->kernel[0] * a->kernel[1], length = a->channels * taps;
    const int64_t pixels = a->image[0] * a->image[1] * a->batch;
    const int64_t high = (a->features + HIGH - 1) / HIGH, wide = (length + BROAD - 1) / BROAD, count = a->pieces * a->groups;
    const int64_t wanted = (parts + 1) / 2, cuts = (wanted + count - 1) / (count ? count : 1);
    int64_t down = 1, least_cost = INT64_MAX;
    for (int64_t d = 1; d <= cuts; d++) {  // of rectangles of the result: what is computed, and what is packed
        const int64_t rows = (high + d - 1) / d * HIGH, cols = (wide + cuts / d - 1) / (cuts / d) * BROAD;
        const int64_t cost = rows * cols + 8 * rows + 16 * cols / taps;
        if (cuts % d == 0 && cost < least_cost) {
            least_cost = cost;
            down = d;
        }
    }
    const span s = share(count * cuts, 1, part, parts);
    for (int64_t i = s.begin; i < s.end; i++) {
        const int64_t piece = i / cuts / a->groups, group = i / cuts % a->groups, cut = i % cuts, across = cuts / down;
        slopes of = {a->out + (piece * a->groups + group) * a->features * length, from_at(a->x, of_x, group * a->channels * pixels),
                     from_at(a->g, of_g, group * a->features * a->inner), of_x, of_g, a->features, a->channels, taps, a->batch, a->image, a->places,
                     {a->kernel[0], a->dilation[0], a->stride[0], a->padding[0], 0},
                     {a->kernel[1], a->dilation[1], a->stride[1], a->padding[1], 0},
                     piece * a->chunk, least((piece + 1) * a->chunk, a->inner)};
        const span features = share(a->features, HIGH, cut / across, down);
        const span cols = share(length, BROAD, cut % across, across);
        if (features.begin == features.end || cols.begin == cols.end) continue;
        if (of.begin < of.end) {
            add_up(&of, features, cols);
            continue;
        }
        for (int64_t f = features.begin; f < features.end; f++)
            memset(of.out + f * length + cols.begin, 0, (size_t)(cols.end - cols.begin) * sizeof *of.out);
    }
}
