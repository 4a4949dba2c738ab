// Pooling over [channels, height, width, batch].  A tap sees neighbouring samples side by side, and neighbouring places
// where windows move by one pixel; so a row is done tap after tap.
#include "rows.h"

typedef struct {
    number *out;
    float *tap;
    const number *in;
    int of_out, of_in;  // types (halves.h)
    int64_t n, batch;
    const int64_t *image, *places, *kernel, *stride, *padding, *dilation;
} pool;

enum { LARGEST, CHOSEN, MEAN, SPREAD };  // what is made, and that of the gradients

// What n elements of a tap bring to the results, which are `step` apart where it is a gradient, else what it sees is.
static inline void bring(int how, float *out, float *tap, const float *x, int64_t step, int64_t n, float number, float none) {
    const int back = how == CHOSEN || how == SPREAD;
    const int64_t to = back ? step : 1, from = back ? 1 : step;
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i * from], best = out[i * to], t = how > CHOSEN ? none : tap[i];
        if (how == LARGEST) {
            const int larger = (v > best) | ((v != v) & (best == best)) | (t == none);
            out[i] = larger ? v : best;
            tap[i] = larger ? number : t;
        } else out[i * to] = best + (how == CHOSEN && t != number ? 0.0f : v);
    }
}

// Rows of results, in pieces where 16 bits have to be converted; a gradient's are pixels and what taps see is places.
static inline __attribute__((always_inline)) void pooled(int how, const pool *p, int64_t part, int64_t parts) {
    const int back = how == CHOSEN || how == SPREAD;
    const int64_t *made = back ? p->image : p->places, *seen = back ? p->places : p->image;
    const int64_t batch = p->batch, stride = p->stride[1], most = p->of_out || p->of_in ? BLOCK : INT64_MAX;
    const int64_t samples = least(batch, most), fit = most / (samples * stride + 1), columns = least(made[1], fit ? fit : 1);
    const float taps = (float)(p->kernel[0] * p->kernel[1]);
    const span rows = share(p->n ? p->n / (made[1] * batch) : 0, 1, part, parts);  // of all channels
    ALIGNED float block[BLOCK], result[BLOCK];
    for (int64_t row = rows.begin; row < rows.end; row++)
    for (int64_t left = 0; left < made[1]; left += columns)
    for (int64_t b = 0; b < batch; b += samples) {
        const int64_t right = least(left + columns, made[1]), m = least(samples, batch - b), n = (right - left) * m;
        const int64_t at = (row * made[1] + left) * batch + b;
        float *out = room(p->out, p->of_out, at, result), *tap = p->tap + at;
        EACH(i, n) out[i] = how == LARGEST ? -INFINITY_ : 0.0f;
        if (how == LARGEST) EACH(i, n) tap[i] = taps;
        for (int64_t t = 0; t < p->kernel[0] * p->kernel[1]; t++) {
            const int64_t i = t / p->kernel[1], first = t % p->kernel[1] * p->dilation[1] - p->padding[1];
            const int64_t down = i * p->dilation[0] - p->padding[0], y = row % made[0];
            const int64_t other = !back ? y * p->stride[0] + down : (y - down) % p->stride[0] ? -1 : (y - down) / p->stride[0];
            if (other < 0 || other >= seen[0]) continue;
            // the places from which the tap sees a pixel, which is stride * place + first
            const int64_t low = (back ? left : 0) - first, high = (back ? right : p->image[1]) - 1 - first;
            const int64_t begin = back ? 0 : left, after = low > 0 ? (low + stride - 1) / stride : 0;
            const int64_t end = high < 0 ? 0 : least(back ? p->places[1] : right, high / stride + 1);
            const int64_t apart = m == batch && (stride == 1 || batch == 1) ? end - (after > begin ? after : begin) : 1;
            const int64_t step = batch == 1 ? stride : 1, line = (row / made[0] * seen[0] + other) * seen[1] * batch + b;
            for (int64_t place = after > begin ? after : begin; place < end; place += apart) {
                const int64_t pixel = place * stride + first, from = line + (back ? place : pixel) * batch;
                const int64_t to = ((back ? pixel : place) - left) * batch, count = apart * m;
                const float *x = wide(p->in, p->of_in, from, back ? count : (count - 1) * step + 1, block);
                float *chosen = how == CHOSEN ? p->tap + from : tap + to;
                if (step == 1) bring(how, out + to, chosen, x, 1, count, (float)t, taps);
                else bring(how, out + to, chosen, x, step, count, (float)t, taps);
            }
        }
        if (how > CHOSEN) EACH(i, n) out[i] /= taps;
        kept(p->out, p->of_out, at, n, out);
    }
}

#define POOL(tap, in, number) &(pool){a->out, tap, in, type_of(a->types, 0), type_of(a->types, number), a->n, a->batch, \
                                      a->image, a->places, a->kernel, a->stride, a->padding, a->dilation}, part, parts

KERNEL(max_pool2d, {
    number *out; float *tap; const number *x; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2]; int64_t types;
}) { pooled(LARGEST, POOL(a->tap, a->x, 2)); }

KERNEL(max_pool2d_grad, {
    number *out; const float *tap; const number *g; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2]; int64_t types;
}) { pooled(CHOSEN, POOL((float *)a->tap, a->g, 2)); }

KERNEL(avg_pool2d, {
    number *out; const number *x; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2]; int64_t types;
}) { pooled(MEAN, POOL(NULL, a->x, 1)); }

KERNEL(avg_pool2d_grad, {
    number *out; const number *g; int64_t n; int64_t batch; int64_t image[2]; int64_t places[2];
    int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2]; int64_t types;
}) { pooled(SPREAD, POOL(NULL, a->g, 1)); }
