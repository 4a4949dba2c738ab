"""Cotangents: gradients of the loss with respect to one tensor, while `backward` adds them up.

A gradient rule returns a buffer, or a slice cotangent (`SliceCotangent`) where most would be zeros.  The functions here
are all that can happen to one on its way to the rule of the op before; `ag.autograd.tape` calls them, and for 16-bit
tensors `ag.autograd.tensor.Node`.  Knows no op and no tape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from itertools import accumulate
from math import prod
from typing import Protocol

from ag.autograd.loss_scale import scaled, unscaled
from ag.autograd.mixed_precision import launch_on
from ag.engine.buffer import Buffer
from ag.engine.dtype import F16, F32, DType
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, copy
from ag.engine.kernels.reduce import sum_to
from ag.engine.shape import Shape

__all__ = ["Cotangent", "SliceCotangent", "plus", "shaped_like", "stored_for", "whole"]


class Owner(Protocol):
    """What must be known of the tensor that a cotangent belongs to."""

    @property
    def buffer(self) -> Buffer: ...

    @property
    def node(self) -> object | None:
        """What the tensor was computed by; None for a parameter."""


class SliceCotangent:
    """A cotangent that is 0 but for contiguous parts: what slices of a tensor send back.

    Where the slices make up the whole tensor, as queries, keys and values do, their cotangents are put side by side,
    without zeros to fill in and to add:

        q, k, v = t[:n], t[n:2*n], t[2*n:]    ->    the cotangent of t is dq, dk, dv: three copies

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

    def extend(self, other: SliceCotangent) -> None:
        """Add the parts of another cotangent of the same tensor."""
        self._parts += other._parts

    def whole(self) -> Buffer:
        """The sum of all parts, as a buffer."""
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
    """All elements of a cotangent."""
    return g.whole() if isinstance(g, SliceCotangent) else g


def plus(known: Cotangent, g: Cotangent) -> Cotangent:
    """The sum of two cotangents of one tensor; slices stay slices, and 16-bit numbers are added in float32."""
    if isinstance(known, SliceCotangent) and isinstance(g, SliceCotangent):
        known.extend(g)
        return known
    g = whole(g)
    return converted(launch_on(g)(add, whole(known), g), g.dtype)


def shaped_like(x: Owner, g: Cotangent) -> Cotangent:
    """Undo broadcasting: `g` summed over the axes along which `x` was repeated."""
    shape = x.buffer.shape
    return g if g.shape == shape or isinstance(g, SliceCotangent) else sum_to(launch_on(g), g, shape)


def stored_for(x: Owner, g: Buffer, made_of: DType) -> Buffer:
    """`g` in the type in which a cotangent of `x` is stored, where tensors have 16 bits.

    That is the tensor's own type, and float32 for a parameter.  In f16 it is stored times the loss scale; so is what
    a rule made of an f16 cotangent (`made_of`).
    """
    stored = F32 if x.node is None else x.buffer.dtype
    if (stored is F16) is not (made_of is F16):
        g = scaled(g) if stored is F16 else unscaled(g)
    return converted(g, stored)
