// Windows that move over images: each place of a window sees a pixel, or padding, from each of its taps; see
// ag/engine/window.py.  A tensor is [channels, height, width, batch]: image[2] is the size under the windows, places[2]
// their number.  Unsigned numbers below 0 wrap and are then too large for any image, so one comparison is enough.
// Before including this a kernel defines OPERANDS, its operands' offsets, and may define PARAMS.
#ifndef PARAMS
#define PARAMS
#endif

layout(push_constant) uniform Args {
    uint n, batch, image[2], places[2], kernel[2], stride[2], padding[2], dilation[2];
    uint OPERANDS;
    PARAMS
};

uint plane(uint size[2]) { return size[0] * size[1] * batch; }

// An element of a tensor of planes: its channel, its place in the plane, its number in the batch.
struct Element { uint channel, y, x, b; };
Element element(uint i, uint size[2]) {
    return Element(i / plane(size), i / batch / size[1] % size[0], i / batch % size[1], i % batch);
}

// The pixel that a tap sees from a place; outside of the image it is padding.
uint pixel(uint axis, uint place, uint tap) { return place * stride[axis] + tap * dilation[axis] - padding[axis]; }

// The place from which a tap sees a pixel; no place at all, and so a large number, if the stride leaves it out.
uint place(uint axis, uint pixel, uint tap) {
    const uint moved = pixel + padding[axis] - tap * dilation[axis];
    return moved % stride[axis] == 0 ? moved / stride[axis] : ~0u;
}
