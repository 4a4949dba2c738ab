"""Reductions along one axis: sum, maximum, minimum, product; a maximum's place; a sum's adjoint; equality.

An axis is cut into pieces: ``out[.., k, ..] = scale * sum of x[.., k chunk : (k + 1) chunk, ..]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ag.engine.buffer import Buffer, Run
from ag.engine.primitive import Array, Call, PrimitiveTo, primitive
from ag.engine.shape import Shape, broadcast, broadcast_axes, broadcast_layout, expand_layout, sum_layout, summed

# One workgroup adds up one row; longer rows are cut first, so that the work spreads and loops stay short
# (lavapipe silently ends an invocation's loops after 65,535 iterations).
LONGEST_ROW = 1 << 17
CHUNK = 1 << 12
_SMALL = 1 << 12  # elements; above, numpy's pairwise reduction is as fast and more accurate
SHORT = 256  # elements that may be added one after the other


@primitive(summed, layout=sum_layout, bound=True)
def sum(out: Array, x: Array, *, axis: int, chunk: int, scale: float) -> Call:
    n = x.shape[axis]
    row = ones(n, x.dtype) if x.size <= _SMALL else None  # a product with ones takes half the time of a reduction
    if row is not None and out.size == 1:
        return partial(_sum_all, out, x.reshape(-1).dot, row, scale)
    if row is not None and x.ndim == 2 and axis == 1 and chunk >= n:
        return _scaled(partial(x.dot, row, out=out[:, 0]), out, scale)
    if chunk >= n and _is_plain(x, axis):
        return _scaled(partial(np.add.reduce, x, axis, out=out, keepdims=True), out, scale)
    if chunk >= n:
        return lambda: np.multiply(total(x, axis), scale, out=out)
    return _scaled(partial(np.add.reduceat, x, range(0, n, chunk), axis, out=out), out, scale)


def _sum_all(out: Array, dot: Callable[[Array], float], row: Array, scale: float) -> None:
    out.fill(scale * float(dot(row)))


def _scaled(call: Call, out: Array, scale: float) -> Call:
    """`call`, and then `out` times `scale`."""
    if scale == 1.0:
        return call

    def both() -> None:
        call()
        np.multiply(out, scale, out=out)

    return both


def total(x: Array, axis: int) -> Array:
    """The sum along an axis, which stays with size 1."""
    # Numpy adds pairwise along the last axis, and one after the other along the others.  There, elements that lie
    # `parts` apart are added first, in rows that are `parts` times as long, and then those sums.
    n = x.shape[axis]
    if _is_plain(x, axis):
        added: Array = np.add.reduce(x, axis, keepdims=True)
        return added
    outer, inner, parts = x.shape[:axis], x.shape[axis + 1 :], -(-n // 64)
    x = x.reshape(math.prod(outer), n, math.prod(inner))
    full = n // parts * parts
    sums: Array = np.add.reduce(x[:, :full].reshape(len(x), n // parts, -1), 1).reshape(len(x), parts, -1)
    if full < n:
        sums[:, : n - full] += x[:, full:]
    return total(sums, 1).reshape(*outer, 1, *inner)


def _is_plain(x: Array, axis: int) -> bool:
    """Return whether numpy's own sum keeps the digits."""
    return x.shape[axis] <= SHORT or math.prod(x.shape[axis + 1 :]) == 1


@lru_cache(maxsize=256)
def ones(n: int, dtype: np.dtype[Any]) -> Array:
    """A vector of ones, shared: not to be written."""
    return np.ones(n, dtype)


def sum_over(run: Run, x: Buffer, axes: Shape, scale: float = 1.0, shape: Shape | None = None) -> Buffer:
    """`scale` times the sum of `x` over `axes`, which stay as axes of size 1, or are left out in `shape`."""
    stages, kept = stages_of(x.shape, axes)
    for viewed, axis in stages:
        if viewed != x.shape:
            x = x.view(viewed)
        if viewed[axis] > LONGEST_ROW:
            x = run(sum, x, axis=axis, chunk=CHUNK, scale=1.0)
        x = run(sum, x, axis=axis, chunk=x.shape[axis], scale=scale)
        scale = 1.0
    return x.view(kept if shape is None else shape)


@lru_cache(maxsize=1024)
def stages_of(shape: Shape, axes: Shape) -> tuple[list[tuple[Shape, int]], Shape]:
    """The reductions one by one, each along an axis of a view: neighbours are one long axis. And what is left."""
    kept, stages = shape, []
    firsts, lasts = ([a for a in axes if a + step not in axes] for step in (-1, 1))
    for first, last in zip(reversed(firsts), reversed(lasts), strict=True):
        stages.append(((*kept[:first], math.prod(kept[first : last + 1]), *kept[last + 1 :]), first))
        kept = *kept[:first], *(1,) * (last + 1 - first), *kept[last + 1 :]
    return stages, kept


def sum_to(run: Run, x: Buffer, shape: Shape) -> Buffer:
    """The adjoint of broadcasting: `x` summed back to `shape`."""
    return sum_over(run, x, broadcast_axes(shape, x.shape), shape=shape)


@primitive(lambda _x, *, shape, factor: shape, layout=expand_layout)
def expand(out: Array, x: Array, *, shape: Shape, factor: float) -> None:
    # out = factor x, repeated along axes of size 1; elements of any type where the factor is 1
    if factor == 1.0:
        np.copyto(out, x)
    else:
        np.multiply(x, factor, out=out)


def _folding(name: str, combine: np.ufunc) -> PrimitiveTo[Buffer]:
    """Declare a reduction by a function of two numbers."""
    def fold(out: Array, x: Array, *, axis: int, chunk: int) -> Call:
        n = x.shape[axis]
        if chunk >= n:
            return partial(combine.reduce, x, axis, out=out, keepdims=True)
        return partial(combine.reduceat, x, range(0, n, chunk), axis, out=out)

    fold.__name__ = name
    return primitive(summed, layout=sum_layout, bound=True)(fold)


max, min, prod = _folding("max", np.maximum), _folding("min", np.minimum), _folding("prod", np.multiply)


@primitive(summed, layout=sum_layout)
def argmax(out: Array, x: Array, *, axis: int, chunk: int) -> None:
    out[...] = np.argmax(x, axis, keepdims=True)  # the first, where several are equal or NaN


@primitive(broadcast, layout=broadcast_layout, bound=True)
def equal(out: Array, a: Array, b: Array) -> Call:
    return partial(np.equal, a, b, out)  # 1 or 0
