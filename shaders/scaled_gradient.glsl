// The gradient of an invocation, times the factor, with which it is stored; rounded as a launch of its own would.
// Include after the declaration of `g` and `factor`.
float scaled_gradient(uint i) {
    if (i >= n) return 0.0;
    precise float grad = g[g_at + i];
    if (factor[factor_at] != 1.0) {
        grad *= factor[factor_at];
        g[g_at + i] = grad;
    }
    return grad;
}
