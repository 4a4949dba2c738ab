"""Cotangents: gradients of the loss with respect to one tensor, while `backward` adds them up.

A gradient rule returns a buffer, or a `SliceCotangent` where most elements would be zeros.  The functions here add,
reduce and convert both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from itertools import accumulate
from math import prod
from typing import Any

from ag.autograd.half import launch_on, scaled, unscaled
from ag.engine.buffer import Buffer
from ag.engine.dtype import F16, F32, DType
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, copy
from ag.engine.kernels.reduce import sum_to
from ag.engine.shape import Shape


class SliceCotangent:
    """The cotangent of a tensor of which slices were used: contiguous parts, zeros elsewhere.

    If the parts cover the whole tensor, as queries, keys and values do, they are copied side by side, without filling
    and adding zeros: ``q, k, v = t[:n], t[n:2*n], t[2*n:]`` gives [dq, dk, dv].
    """

    def __init__(self, shape: Shape, start: int, part: Buffer, spread: Callable[[], Buffer]) -> None:
        self.shape = shape
        self._parts = [(start, part, spread)]  # first element, cotangent, function that pads it with zeros

    def extend(self, other: SliceCotangent) -> None:
        """Add the parts of another cotangent of the same tensor."""
        self._parts += other._parts

    def whole(self) -> Buffer:
        """Return the sum of all parts as a buffer."""
        parts = sorted(self._parts, key=lambda part: part[0])
        ends = list(accumulate(part.size for _, part, _ in parts))
        backend = parts[0][1].backend
        if len(parts) == 1 or ends[-1] != prod(self.shape) or [start for start, *_ in parts] != [0, *ends[:-1]]:
            return reduce(partial(backend.launch, add), [spread() for *_, spread in self._parts])
        out = backend.alloc(self.shape, parts[0][1].dtype)
        for start, part, _ in parts:
            backend.launch(copy, part, into=out.view(part.shape, start))
        return out


Cotangent = Buffer | SliceCotangent


def whole(g: Cotangent) -> Buffer:
    """Return a cotangent as a buffer."""
    return g.whole() if isinstance(g, SliceCotangent) else g


def plus(known: Cotangent, g: Cotangent) -> Cotangent:
    """Add two cotangents of one tensor; slices stay slices, 16-bit numbers are added in float32."""
    if isinstance(known, SliceCotangent) and isinstance(g, SliceCotangent):
        known.extend(g)
        return known
    g = whole(g)
    return converted(launch_on(g)(add, whole(known), g), g.dtype)


def shaped_like(x: Any, g: Cotangent) -> Cotangent:
    """Undo broadcasting: `g` summed over the axes along which `x` was repeated."""
    shape = x.buffer.shape
    return g if g.shape == shape or isinstance(g, SliceCotangent) else sum_to(launch_on(g), g, shape)


def stored_for(x: Any, g: Buffer, made_of: DType) -> Buffer:
    """Convert `g` to the type in which a cotangent of `x` is stored: the tensor's own, float32 for a parameter.

    f16 cotangents carry the loss scale, and so does `g` if a rule made it of an f16 cotangent (`made_of`).
    """
    stored = F32 if x.node is None else x.buffer.dtype
    if (stored is F16) is not (made_of is F16):
        g = scaled(g) if stored is F16 else unscaled(g)
    return converted(g, stored)
