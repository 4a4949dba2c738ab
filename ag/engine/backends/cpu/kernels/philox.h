// Philox4x32-10, the counter-based random numbers of ag/engine/kernels/random.py, with the same bits, and what dropout
// makes of them.
#ifndef PHILOX_H
#define PHILOX_H
#include "ag.h"

#define BLOCKS 64  // of four words, made at once at most

// The words of some blocks, beginning with number `first`; key is (seed low, seed high, stream low, stream high).
static inline void philox(uint32_t *words, const uint32_t *key, uint64_t first, int64_t blocks) {
    uint32_t a[BLOCKS], b[BLOCKS], c[BLOCKS], d[BLOCKS], seed = key[0], other = key[1];
    for (int64_t i = 0; i < blocks; i++) {
        a[i] = (uint32_t)(first + (uint64_t)i);
        b[i] = (uint32_t)((first + (uint64_t)i) >> 32);
        c[i] = key[2];
        d[i] = key[3];
    }
    for (int round = 0; round < 10; round++, seed += 0x9E3779B9u, other += 0xBB67AE85u) {
#pragma GCC ivdep
        for (int64_t i = 0; i < blocks; i++) {
            const uint64_t x = 0xD2511F53ull * a[i], y = 0xCD9E8D57ull * c[i];
            a[i] = (uint32_t)(y >> 32) ^ b[i] ^ seed;
            c[i] = (uint32_t)(x >> 32) ^ d[i] ^ other;
            b[i] = (uint32_t)y;
            d[i] = (uint32_t)x;
        }
    }
    for (int64_t i = 0; i < blocks; i++) {
        words[4 * i] = a[i];
        words[4 * i + 1] = b[i];
        words[4 * i + 2] = c[i];
        words[4 * i + 3] = d[i];
    }
}

// What dropout makes of ones, from number `first` of the stream on: 0 or 1 / (1 - rate), `step` floats apart.
static inline void kept_of(float *to, int64_t step, int64_t count, const uint32_t *key, uint64_t first, double rate) {
    const float least_kept = (float)rate, factor = (float)(1.0 / (1.0 - rate));
    uint32_t words[4 * BLOCKS];
    ALIGNED float made[4 * BLOCKS];
    for (int64_t at = 0; at < count;) {
        const uint64_t number = first + (uint64_t)at;
        const int64_t skip = (int64_t)(number % 4), n = least(4 * BLOCKS - skip, count - at), all = skip + n;
        philox(words, key, number / 4, (all + 3) / 4);
        for (int64_t i = 0; i < all; i++)
            made[i] = (float)(int32_t)(words[i] >> 8) * 0x1p-24f >= least_kept ? factor : 0.0f;
        for (int64_t i = 0; i < n; i++) to[(at + i) * step] = made[skip + i];
        at += n;
    }
}
#endif
