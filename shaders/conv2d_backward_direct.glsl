// A convolution's gradient by its input, an element at a time.
#define DIRECT
#include "conv2d_numbers.glsl"
#define OPERANDS out_at, w_at, g_at
#define PARAMS uint channels, features, by_channels[2]; EPILOGUE
#define GRID image
#include "index.glsl"
#include "window.glsl"

NUMBERS(1, readonly, W, w)
NUMBERS(2, readonly, G, g)
#ifdef CHAIN
#define COLS plane(image)
#include "epilogue.glsl"
#endif

// In loops of its own for float32, as a driver that does not fold `types` goes through no loop without turns.
#define ADD_UP(product) for (uint f = 0; f < features; f++, g_i += g_step, w_i += w_step) total += product;

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const Element e = element(i);
    const uint g_step = plane(places), taps = kernel_0 * kernel_1, w_step = channels * taps;
    const uint group = quotient(e.channel, by_channels[0], by_channels[1]), first = group * features;
    const uint g_0 = FIRST_OF(2, g_at) + first * g_step + e.b;
    const uint w_0 = FIRST_OF(1, w_at) + first * w_step + (e.channel - group * channels) * taps;
    float total = 0.0;
    for (uint down = 0; down < kernel_0; down++) {
        const uint y = place(0, e.y, down);
        if (y >= places[0]) continue;
        for (uint across = 0; across < kernel_1; across++) {
            const uint x = place(1, e.x, across);
            if (x >= places[1]) continue;
            uint g_i = g_0 + (y * places[1] + x) * batch, w_i = w_0 + down * kernel_1 + across;
            if (types == 0) ADD_UP(w[w_i] * g[g_i])
            else ADD_UP(NUMBER(w, 1, 0, w_i) * NUMBER(g, 2, 0, g_i))
        }
    }
#ifdef CHAIN
    total = chained(e.channel, i - e.channel * plane(image), total);
#endif
    PUT_ALONE(out_, 0, FIRST_OF(0, out_at) + i, total)
}
