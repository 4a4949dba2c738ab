// Rows of images as convolutions want them: packed, padded with zeros, and apart by the steps of their window.
// Lanes of vectors are places of a row and samples.  A window that moves by `stride` sees every stride-th pixel from a
// tap, so pixel `stride * j + r` of a packed row lies at [channel, r, j, sample].  Then what a tap sees from neighbouring
// places lies side by side, for any stride, dilation, padding and batch.
#ifndef CONV_H
#define CONV_H
#include "tiles.h"

// How the places of a row see the pixels of another: place `apart * j + r` sees, by a tap, pixel `steps * (j + shift) +
// rest` of the other row.  `apart` or `steps` is 1, and the other is the stride.
typedef struct {
    int64_t kernel, dilation, stride, padding;
    int64_t back;  // whether the places are the image's pixels, which gradients flow to
} axis;

// The shift and rest of a tap for places of remainder `r`; whether it sees anything from them.
static inline int sees(const axis *x, int64_t r, int64_t tap, int64_t *shift, int64_t *rest) {
    const int64_t at = x->back ? r + x->padding - tap * x->dilation : tap * x->dilation - x->padding;
    const int64_t left = (at % x->stride + x->stride) % x->stride;
    *shift = (at - left) / x->stride;
    *rest = x->back ? 0 : left;
    return !x->back || left == 0;
}

// The smallest and the largest shift of all taps.
static inline void shifts(const axis *x, int64_t *low, int64_t *high) {
    *low = INT64_MAX;
    *high = INT64_MIN;
    for (int64_t r = 0; r < (x->back ? x->stride : 1); r++)
        for (int64_t tap = 0; tap < x->kernel; tap++) {
            int64_t shift, rest;
            if (!sees(x, r, tap, &shift, &rest)) continue;
            if (shift < *low) *low = shift;
            if (shift > *high) *high = shift;
        }
    if (*low > *high) *low = *high = 0;
}

// A packed row holds, of some channels and samples, pixels `steps * (first + i) + r` for i < count.
typedef struct {
    int64_t channels, height, width, batch;  // of the tensor
    int64_t steps, first, count, samples, sample;
    int64_t pitch;                           // floats from remainder to remainder
    int type;                                // of the tensor (halves.h)
} strip;

// Room for what vectors read behind the end; an odd number of cache lines, so that channels do not share their places.
static inline int64_t pitch_of(int64_t lanes) { return up(lanes + WIDE, 16) | 16; }

static inline void pack_strip(float *to, const number *image, const strip *s, int64_t row) {
    const int64_t length = s->count * s->samples;
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t r = 0; r < s->steps; r++, to += s->pitch) {
            if (row < 0 || row >= s->height) {
                memset(to, 0, (size_t)s->pitch * sizeof *to);
                continue;
            }
            const int64_t from = (c * s->height + row) * s->width * s->batch + s->sample;
            int64_t begin = -s->first, end = (s->width - r + s->steps - 1) / s->steps - s->first;
            begin = begin < 0 ? 0 : least(begin, s->count);
            end = end < begin ? begin : least(end, s->count);
            memset(to, 0, (size_t)(begin * s->samples) * sizeof *to);
            float *x = to + begin * s->samples;
            if (s->steps == 1 && s->samples == s->batch) {
                take_floats(x, image, s->type, from + (s->first + begin) * s->batch, (end - begin) * s->batch);
            } else {
                for (int64_t i = begin; i < end; i++, x += s->samples) {
                    const int64_t pixel = from + (s->steps * (s->first + i) + r) * s->batch;
                    if (s->type) take_floats(x, image, s->type, pixel, s->samples);
                    else for (int64_t b = 0; b < s->samples; b++) x[b] = image[pixel + b];
                }
            }
            memset(to + end * s->samples, 0, (size_t)(length - end * s->samples + s->pitch - length) * sizeof *to);
        }
}
#endif
