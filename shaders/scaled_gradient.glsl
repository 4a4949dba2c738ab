// The gradient of an invocation times a factor, with which it is stored; rounded as a launch of its own would.
// Include after the declaration of `g`.
float scaled_gradient(uint i, float factor) {
    if (i >= n) return 0.0;
    precise float grad = g[g_at + i];
    if (factor != 1.0) {
        grad *= factor;
        g[g_at + i] = grad;
    }
    return grad;
}
