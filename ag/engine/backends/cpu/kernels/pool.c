// Pooling over [channels, height, width, batch].  A tap sees neighbouring samples side by side, and neighbouring places
// where windows move by one pixel; so a row is done tap after tap.
#include "ag.h"

typedef struct {
    float *out;
    const int64_t *image, *places, *kernel, *stride, *padding, *dilation;
    int64_t batch;
} pool;

// The places from which a tap sees a pixel; the pixel of a place is stride * place + first.
typedef struct { int64_t begin, end, first; } sight;

static sight sight_of(const pool *p, int64_t tap) {
    const int64_t stride = p->stride[1], first = tap * p->dilation[1] - p->padding[1];
    const int64_t begin = first >= 0 ? 0 : (stride - 1 - first) / stride, last = p->image[1] - 1 - first;
    const int64_t end = last < 0 ? 0 : least(p->places[1], last / stride + 1);
    return (sight){begin, end, first};
}

// The pixel row that a row of taps sees from a row of places, or -1.
static int64_t pixel_row(const pool *p, int64_t row, int64_t tap) {
    const int64_t y = row * p->stride[0] + tap * p->dilation[0] - p->padding[0];
    return y < 0 || y >= p->image[0] ? -1 : y;
}

// The row of places from which a row of taps sees a row of pixels, or -1.
static int64_t place_row(const pool *p, int64_t row, int64_t tap) {
    const int64_t y = row + p->padding[0] - tap * p->dilation[0];
    return y < 0 || y % p->stride[0] || y / p->stride[0] >= p->places[0] ? -1 : y / p->stride[0];
}

// For what tap `j` of a row sees: places from AT_PLACE on and pixels from AT_PIXEL on, N of each; pixels are STEP apart.
#define EACH_RUN(p, j, action) do { \
    const sight s = sight_of(p, j); \
    const int64_t stride = (p)->stride[1], batch = (p)->batch, apart = stride == 1 || batch == 1 ? s.end - s.begin : 1; \
    const int64_t N = apart * batch, STEP = batch == 1 ? stride : 1; \
    for (int64_t place = s.begin; place < s.end; place += apart) { \
        const int64_t AT_PLACE = place * batch, AT_PIXEL = (place * stride + s.first) * batch; \
        if (STEP == 1) action(1); \
        else action(STEP); \
    } \
} while (0)

static inline void take_larger(float *best, float *tap, const float *x, int64_t step, int64_t n, float number, float none) {
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i * step], b = best[i], t = tap[i];
        const int larger = (v > b) | ((v != v) & (b == b)) | (t == none);
        best[i] = larger ? v : b;
        tap[i] = larger ? number : t;
    }
}

static inline void add_chosen(float *out, int64_t step, const float *tap, const float *g, int64_t n, float number) {
    for (int64_t i = 0; i < n; i++) out[i * step] += tap[i] == number ? g[i] : 0.0f;
}

static inline void add_all(float *out, int64_t step_out, const float *x, int64_t step_x, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i * step_out] += x[i * step_x];
}

static span rows_of(int64_t n, const int64_t *size, int64_t batch, int64_t part, int64_t parts) {
    return share(n ? n / (size[1] * batch) : 0, 1, part, parts);  // of all channels
}

#define POOL {a->out, a->image, a->places, a->kernel, a->stride, a->padding, a->dilation, a->batch}

KERNEL(max_pool2d, {
    float *out; float *tap; const float *x; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2];
}) {
    const pool p = POOL;
    const int64_t width = a->places[1] * a->batch, line = a->image[1] * a->batch;
    const float none = (float)(a->kernel[0] * a->kernel[1]);
    const span rows = rows_of(a->n, a->places, a->batch, part, parts);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        const int64_t channel = row / a->places[0];
        float *best = a->out + row * width, *tap = a->tap + row * width;
        for (int64_t i = 0; i < width; i++) {
            best[i] = -__builtin_inff();
            tap[i] = none;
        }
        for (int64_t i = 0; i < a->kernel[0]; i++) {
            const int64_t y = pixel_row(&p, row % a->places[0], i);
            if (y < 0) continue;
            const float *x = a->x + (channel * a->image[0] + y) * line;
            for (int64_t j = 0; j < a->kernel[1]; j++) {
                const float number = (float)(i * a->kernel[1] + j);
#define TAKE(step) take_larger(best + AT_PLACE, tap + AT_PLACE, x + AT_PIXEL, step, N, number, none)
                EACH_RUN(&p, j, TAKE);
            }
        }
    }
}

KERNEL(max_pool2d_grad, {
    float *out; const float *tap; const float *g; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2];
}) {
    const pool p = POOL;
    const int64_t width = a->places[1] * a->batch, line = a->image[1] * a->batch;
    const span rows = rows_of(a->n, a->image, a->batch, part, parts);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        float *out = a->out + row * line;
        memset(out, 0, (size_t)line * sizeof *out);
        for (int64_t i = 0; i < a->kernel[0]; i++) {
            const int64_t y = place_row(&p, row % a->image[0], i);
            if (y < 0) continue;
            const int64_t at = (row / a->image[0] * a->places[0] + y) * width;
            for (int64_t j = 0; j < a->kernel[1]; j++) {
                const float number = (float)(i * a->kernel[1] + j);
#define SEND(step) add_chosen(out + AT_PIXEL, step, a->tap + at + AT_PLACE, a->g + at + AT_PLACE, N, number)
                EACH_RUN(&p, j, SEND);
            }
        }
    }
}

KERNEL(avg_pool2d, {
    float *out; const float *x; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2];
}) {
    const pool p = POOL;
    const int64_t width = a->places[1] * a->batch, line = a->image[1] * a->batch;
    const float taps = (float)(a->kernel[0] * a->kernel[1]);
    const span rows = rows_of(a->n, a->places, a->batch, part, parts);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        float *out = a->out + row * width;
        memset(out, 0, (size_t)width * sizeof *out);
        for (int64_t i = 0; i < a->kernel[0]; i++) {
            const int64_t y = pixel_row(&p, row % a->places[0], i);
            if (y < 0) continue;
            const float *x = a->x + (row / a->places[0] * a->image[0] + y) * line;
#define ADD(step) add_all(out + AT_PLACE, 1, x + AT_PIXEL, step, N)
            for (int64_t j = 0; j < a->kernel[1]; j++) EACH_RUN(&p, j, ADD);
        }
        for (int64_t i = 0; i < width; i++) out[i] /= taps;
    }
}

KERNEL(avg_pool2d_grad, {
    float *out; const float *g; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2];
}) {
    const pool p = POOL;
    const int64_t width = a->places[1] * a->batch, line = a->image[1] * a->batch;
    const float taps = (float)(a->kernel[0] * a->kernel[1]);
    const span rows = rows_of(a->n, a->image, a->batch, part, parts);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        float *out = a->out + row * line;
        memset(out, 0, (size_t)line * sizeof *out);
        for (int64_t i = 0; i < a->kernel[0]; i++) {
            const int64_t y = place_row(&p, row % a->image[0], i);
            if (y < 0) continue;
            const float *g = a->g + (row / a->image[0] * a->places[0] + y) * width;
#define SPREAD(step) add_all(out + AT_PIXEL, step, g + AT_PLACE, 1, N)
            for (int64_t j = 0; j < a->kernel[1]; j++) EACH_RUN(&p, j, SPREAD);
        }
        for (int64_t i = 0; i < line; i++) out[i] /= taps;
    }
}
