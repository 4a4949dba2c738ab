"""Sizes that follow the batch: found by comparing the numbers that batches of several sizes gave.

    batches of 4, 5, 7 samples:    3, 3, 3 -> 3      4, 5, 7 -> Size(0, 1)      12, 15, 21 -> Size(0, 3)
                                   6, 7, 9 -> Size(2, 1)      16, 25, 49 -> nothing: no graph can say that

The third batch tells a square from a straight line.  Knows numbers only; `ag.io.onnx.program` and `ag.io.onnx.graph`
call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Dim", "Dims", "Size", "fit", "product"]


class Size(NamedTuple):
    """A number that depends on the batch: ``fixed + per_sample * batch``."""

    fixed: int
    per_sample: int

    def __str__(self) -> str:
        times = "batch" if self.per_sample == 1 else f"{self.per_sample}*batch"
        return times if self.fixed == 0 else f"{times}{self.fixed:+d}"


Dim = int | Size
Dims = tuple[Dim, ...]


def fit(numbers: Sequence[int], batches: Sequence[int]) -> Dim | None:
    """The number itself if it is always the same, else how it depends on the batch; None if on no straight line."""
    first, *others = numbers
    if all(n == first for n in others):
        return int(first)
    if batches[0] == batches[1]:
        return None
    slope, rest = divmod(others[0] - first, batches[1] - batches[0])
    size = Size(int(first - slope * batches[0]), int(slope))
    fits = rest == 0 and all(size.fixed + size.per_sample * b == n for n, b in zip(numbers, batches, strict=True))
    return size if fits else None


def product(dims: Sequence[Dim]) -> Dim | None:
    """The product of sizes; None if more than one follows the batch."""
    fixed, size = 1, None
    for dim in dims:
        if not isinstance(dim, Size):
            fixed *= dim
        elif size is not None:
            return None
        else:
            size = dim
    return fixed if size is None else Size(fixed * size.fixed, fixed * size.per_sample)
