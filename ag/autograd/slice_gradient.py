"""Cotangents that are 0 but for a part: what a slice of a tensor sends back.

Where slices make up the whole tensor, as queries, keys and values do, their cotangents are only to be put side by side;
nothing needs to be filled with zeros and added.  The rule of `ag.ops.indexing` makes them, `ag.autograd.tape` collects
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from itertools import accumulate
from math import prod

from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import add, copy
from ag.engine.shape import Shape

__all__ = ["Partial"]


class Partial:
    """Cotangents of contiguous parts of one tensor.

    Parameters
    ----------
    shape : tuple of int
        Of the whole tensor.
    start : int
        The first element of the part.
    part : Buffer
        Its cotangent.
    spread : callable
        Makes a buffer of the whole shape of it, 0 elsewhere.
    """

    def __init__(self, shape: Shape, start: int, part: Buffer, spread: Callable[[], Buffer]) -> None:
        self.shape = shape
        self._parts = [(start, part, spread)]

    def extend(self, other: Partial) -> None:
        """Add the cotangents of another for the same tensor."""
        self._parts += other._parts

    def whole(self) -> Buffer:
        """The sum of all, as a buffer."""
        parts = sorted(self._parts, key=lambda part: part[0])
        ends = list(accumulate(part.size for _, part, _ in parts))
        backend = parts[0][1].backend
        if len(parts) == 1 or ends[-1] != prod(self.shape) or [start for start, *_ in parts] != [0, *ends[:-1]]:
            return reduce(partial(backend.launch, add), [spread() for *_, spread in self._parts])
        out = backend.alloc(self.shape, parts[0][1].dtype)
        for start, part, _ in parts:
            backend.launch(copy, part, into=out.view(part.shape, start))
        return out
