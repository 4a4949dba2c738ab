"""Counter-based random numbers (Philox) and dropout, which draws its mask from them.

A number is a function of a key (the seed), a stream and a position, so every device draws the same ones and nothing is
kept between draws but the number of the next stream (`rng_draw`).
"""

from __future__ import annotations

import os
from threading import RLock

import numpy as np

from ag.engine.primitive import Array, primitive
from ag.engine.shape import same

__all__ = ["philox", "rng_draw", "uniform_from_bits", "dropout"]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_drawing = RLock()


def _forked() -> None:
    """Whoever drew in another thread does not exist in a forked child."""
    global _drawing
    _drawing = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def philox(key: tuple[int, int], stream: tuple[int, int], words: int) -> Array:
    """`words` random 32-bit words of one stream.

    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); ten rounds of Philox4x32.
    Word i is word ``i % 4`` of the block with counter ``(i // 4, 0, *stream)``.
    """
    blocks = -(-words // 4)
    index = np.arange(blocks, dtype=np.uint64)
    c0: Array = index & _LOW
    c1: Array = index >> np.uint64(32)
    c2: Array = np.full(blocks, stream[0], np.uint64)
    c3: Array = np.full(blocks, stream[1], np.uint64)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & _LOW,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32).reshape(-1)[:words]


def uniform_from_bits(bits: Array) -> Array:
    """Random words as float32 in [0, 1), on a grid of 2**-24."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


@primitive(same, updates=("state",))
def rng_draw(out: Array, state: Array) -> None:
    # out = (seed low, seed high, stream low, stream high); the state moves on to the next stream.
    with _drawing:  # threads may share a state
        np.copyto(out, state)
        stream = (int(state[2]) | int(state[3]) << 32) + 1
        state[2], state[3] = stream & 0xFFFFFFFF, stream >> 32 & 0xFFFFFFFF


@primitive()
def dropout(out: Array, x: Array, key: Array, *, rate: float) -> None:
    # Element i is kept, and divided by 1 - rate, if the i-th uniform number of the stream is at least rate.
    k = [int(w) for w in key]
    uniform = uniform_from_bits(philox((k[0], k[1]), (k[2], k[3]), x.size)).reshape(x.shape)
    np.multiply(x, (uniform >= np.float32(rate)) * (1.0 / (1.0 - rate)), out=out)
