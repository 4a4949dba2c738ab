// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// The same bits as `philox` in ag/engine/kernels/random.py; ag/engine/random.py says what key and counter are.
uvec4 philox(uvec2 key, uvec4 counter) {
    for (uint round = 0; round < 10; round++) {
        uint high0, low0, high1, low1;
        umulExtended(0xD2511F53u, counter.x, high0, low0);
        umulExtended(0xCD9E8D57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

// Random words as floats in [0, 1), on a grid of 2^-24.
vec4 uniform_from_bits(uvec4 bits) { return vec4(bits >> 8) * (1.0 / 16777216.0); }
