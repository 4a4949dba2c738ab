// Windows that move over images: each place of a window sees a pixel, or padding, from each of its taps; see
// ag/engine/shape.py.  A tensor is [channels, height, width, batch]: image[2] is the size under the windows, places[2]
// their number.  Unsigned numbers below 0 wrap and are then too large for any image, so one comparison is enough.
// A network has few windows, so they are specialization constants, and drivers divide by them without a division.  By
// the sizes of images there are quotients.
// Before including this a kernel defines OPERANDS, its operands' offsets, and GRID, the size of the planes that its
// elements are numbered in, places or image.  It may define PARAMS, and WINDOW, the number of the first constant.
#include "quotient.glsl"
#ifndef PARAMS
#define PARAMS
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#define BY_(size) by_##size
#define BY(size) BY_(size)

layout(constant_id = WINDOW + 0) const uint kernel_0 = 3;
layout(constant_id = WINDOW + 1) const uint kernel_1 = 3;
layout(constant_id = WINDOW + 2) const uint stride_0 = 1;
layout(constant_id = WINDOW + 3) const uint stride_1 = 1;
layout(constant_id = WINDOW + 4) const uint padding_0 = 1;
layout(constant_id = WINDOW + 5) const uint padding_1 = 1;
layout(constant_id = WINDOW + 6) const uint dilation_0 = 1;
layout(constant_id = WINDOW + 7) const uint dilation_1 = 1;

layout(push_constant) uniform Args {
    uint n, batch, image[2], places[2], by_batch[2], BY(GRID)[4];
    uint OPERANDS;
    PARAMS
};

uint plane(uint size[2]) { return size[0] * size[1] * batch; }

// The row of GRID that a pixel is in, all planes counted together.
uint row_of(uint pixel) { return quotient(pixel, BY(GRID)[2], BY(GRID)[3]); }

// An element of a tensor of planes: its channel, its place in the plane, its number in the batch.
struct Element { uint channel, y, x, b; };
Element element(uint i) {
    const uint pixel = quotient(i, by_batch[0], by_batch[1]), row = row_of(pixel);
    const uint channel = quotient(row, BY(GRID)[0], BY(GRID)[1]);
    return Element(channel, row - channel * GRID[0], pixel - row * GRID[1], i - pixel * batch);
}

// The pixel that a tap sees from a place; outside of the image it is padding.
uint pixel(uint axis, uint place, uint tap) {
    if (axis == 0) return place * stride_0 + tap * dilation_0 - padding_0;
    return place * stride_1 + tap * dilation_1 - padding_1;
}

// The place from which a tap sees a pixel; no place at all, and so a large number, if the stride leaves it out.
uint place(uint axis, uint pixel, uint tap) {
    const uint moved = pixel + (axis == 0 ? padding_0 - tap * dilation_0 : padding_1 - tap * dilation_1);
    const uint stride = axis == 0 ? stride_0 : stride_1;
    return moved % stride == 0 ? moved / stride : ~0u;
}
