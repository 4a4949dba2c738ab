"""Random sizes and shapes for launches of the CPU's kernels in C, of which some are 0."""

from __future__ import annotations

import numpy as np

MOST = 30_000  # elements of an operand


class Random(np.random.Generator):
    """Random numbers; of the sizes drawn from them, so many are 0."""

    def __init__(self, seed: int, empty: float = 0.02) -> None:
        super().__init__(np.random.PCG64(seed))
        self.empty = empty

    def is_empty(self) -> bool:
        return bool(self.random() < self.empty)


def size(rng: Random, most: int, least: int = 0) -> int:
    """Small sizes are as likely as large ones; some are where blocks of kernels end, and some 0 unless `least` is 1."""
    if not least and rng.is_empty():
        return 0
    if rng.random() < 0.2:
        return min(most, int(rng.choice([1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1025])))
    return int(np.exp(rng.uniform(0, np.log(most + 0.99))))


def shape(rng: Random, ndim: int, most: int = MOST, full: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Sizes of which one is large, and one may be 0, but not of the axes `full`."""
    sizes, left = [1] * ndim, most
    for axis in rng.permutation(ndim).tolist():
        sizes[axis] = size(rng, max(1, left), 1)
        left //= sizes[axis]
    if (free := [*{*range(ndim)} - {*full}]) and rng.is_empty():
        sizes[int(rng.choice(free))] = 0
    return tuple(sizes)
