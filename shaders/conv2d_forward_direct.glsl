// A convolution, an element of the result at a time.
#define DIRECT
#include "conv2d_numbers.glsl"
#define OPERANDS out_at, x_at, w_at
#define PARAMS uint channels, features, by_features[2]; EPILOGUE
#define GRID places
#include "index.glsl"
#include "window.glsl"

NUMBERS(1, readonly, X, x)
NUMBERS(2, readonly, W, w)
#ifdef CHAIN
#define COLS plane(places)
#include "epilogue.glsl"
#endif

// In loops of its own for float32, as a driver that does not fold `types` goes through no loop without turns.
#define ADD_UP(product) for (uint c = 0; c < channels; c++, x_i += x_step, w_i += w_step) total += product;

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint group = quotient(e.channel, by_features[0], by_features[1]);
    const uint x_step = plane(image), w_step = kernel_0 * kernel_1;
    const uint x_0 = FIRST_OF(1, x_at) + group * channels * x_step + e.b;
    const uint w_0 = FIRST_OF(2, w_at) + e.channel * channels * w_step;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = pixel(0, e.y, down);
        if (y >= image[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x_ = pixel(1, e.x, across);
            if (x_ >= image[1]) continue;
            uint x_i = x_0 + (y * image[1] + x_) * batch, w_i = w_0 + down * kernel_1 + across;
            if (types == 0) ADD_UP(w[w_i] * x[x_i])
            else ADD_UP(NUMBER(w, 2, 0, w_i) * NUMBER(x, 1, 0, x_i))
        }
    }
#ifdef CHAIN
    total = chained(e.channel, i - e.channel * plane(places), total);
#endif
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + i, total)
}
