"""Counter-based random numbers (Philox): uniform ones, whole ones, and dropout, which draws its mask from them.

A number is a function of a key (the seed), a stream and a position, so every device draws the same ones.  The only
state is the number of the next stream.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from threading import RLock

import numpy as np

from ag.engine.arena import after_fork
from ag.engine.primitive import Array, primitive
from ag.engine.shape import Shape, same

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.arange(10, dtype=np.uint64)[:, None] * np.array([0x9E3779B9, 0xBB67AE85], np.uint64)  # by round
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FEW = 4096  # words that are kept for the backward pass, which draws what the forward pass drew
_drawing = RLock()


@after_fork
def _forked() -> None:
    """Drop the locks of threads that do not exist in a forked child."""
    global _drawing
    _drawing = RLock()


def philox(key: tuple[int, int], stream: tuple[int, int], words: int) -> Array:
    """`words` random 32-bit words of one stream.

    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); ten rounds of Philox4x32.
    Word i is word ``i % 4`` of the block with counter ``(i // 4, 0, *stream)``.
    """
    return (_few if words <= _FEW else _philox)(key, stream, words)


def _philox(key: tuple[int, int], stream: tuple[int, int], words: int) -> Array:
    """Both halves of a block at once: words 0 and 2, which are multiplied, and words 1 and 3, which are mixed in."""
    blocks = -(-words // 4)
    even, odd = np.empty((2, blocks), np.uint64), np.empty((2, blocks), np.uint64)
    index = np.arange(blocks, dtype=np.uint64)
    even[0], odd[0] = index & _LOW, index >> _HALF
    even[1], odd[1] = stream
    product = np.empty_like(even)
    crossed = product[::-1]  # each half goes on with the other's product
    for k in ((_WEYL + np.array(key, np.uint64)) & _LOW)[:, :, None]:
        np.multiply(_MULTIPLIERS, even, out=product)
        np.right_shift(crossed, _HALF, out=even)
        even ^= odd
        even ^= k
        np.bitwise_and(crossed, _LOW, out=odd)
    bits = np.empty((blocks, 4), np.uint32)
    bits[:, 0::2], bits[:, 1::2] = even.T, odd.T
    found: Array = bits.reshape(-1)[:words]
    found.flags.writeable = False  # several may have it
    return found


_few = lru_cache(maxsize=32)(_philox)


def uniform_from_bits(bits: Array) -> Array:
    """Random words as float32 in [0, 1), on a grid of 2**-24."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def words_of(key: Array, shape: Shape) -> Array:
    """Random words of the stream that a key of four words names, in one row."""
    low, high, *stream = key.tolist()
    return philox((low, high), (stream[0], stream[1]), prod(shape))


def drawn(key: Array, shape: Shape) -> Array:
    """Uniform numbers of the stream that a key of four words names."""
    return uniform_from_bits(words_of(key, shape)).reshape(shape)


@primitive(same, updates=("state",))
def rng_draw(out: Array, state: Array) -> None:
    # out = (seed low, seed high, stream low, stream high); the state moves on to the next stream.
    with _drawing:  # threads may share a state
        np.copyto(out, state)
        stream = (int(state[2]) | int(state[3]) << 32) + 1
        state[2], state[3] = stream & 0xFFFFFFFF, stream >> 32 & 0xFFFFFFFF


@primitive(lambda _key, *, shape, **_params: shape, in_place=False)
def uniform(out: Array, key: Array, *, shape: Shape) -> None:
    np.copyto(out, drawn(key, shape))


@primitive(lambda _key, *, shape, **_params: shape, in_place=False)
def randint(out: Array, key: Array, *, shape: Shape, low: int, count: int) -> None:
    # Whole numbers from low to below low + count; one of them is off by at most count * 2**-32 of its share.
    bits = words_of(key, shape).astype(np.uint64)
    out[...] = (low + (bits * np.uint64(count) >> np.uint64(32)).astype(np.int64)).reshape(shape)


@primitive()
def dropout(out: Array, x: Array, key: Array, *, rate: float) -> None:
    # Element i is kept, and divided by 1 - rate, if the i-th uniform number of the stream is at least rate.
    np.multiply(x, (drawn(key, x.shape) >= np.float32(rate)) * (1.0 / (1.0 - rate)), out=out)
