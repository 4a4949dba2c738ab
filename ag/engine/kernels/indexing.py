"""Kernels that move elements: slices, concatenation, transposition, columns by their ids.

Places along an axis are ``start, start + step, ...``; a step may be negative.
"""

from __future__ import annotations

import numpy as np

from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape, axis_layout, permute_layout, permuted

_BUSY_GROUPS = 128  # workgroups that keep a large card busy


def resized(shape: Shape, axis: int, n: int) -> Shape:
    return (*shape[:axis], n, *shape[axis + 1 :])


def _count_layout(whole: Shape, part: Shape, *, axis: int, **_params: object) -> Layout:
    return {**axis_layout(whole, whole, axis=axis), "count": part[axis]}


def _places(whole: Array, axis: int, start: int, step: int, count: int) -> Array:
    """The view of `count` places along an axis: `start`, `start + step` …"""
    stop = start + step * count
    return whole[(slice(None),) * axis + (slice(start, stop if stop >= 0 else None, step),)]


@primitive(lambda x, *, axis, start, step, count: resized(x, axis, count), layout=axis_layout)
def part(out: Array, x: Array, *, axis: int, start: int, step: int, count: int) -> None:
    # out[.., k, ..] = x[.., start + k step, ..]
    np.copyto(out, _places(x, axis, start, step, count))


@primitive(lambda x, *, axis, start, step, length: resized(x, axis, length), layout=_count_layout)
def spread(out: Array, x: Array, *, axis: int, start: int, step: int, length: int) -> None:
    # The adjoint of `part`: out[.., start + k step, ..] = x[.., k, ..], and 0 elsewhere.
    out.fill(0)
    np.copyto(_places(out, axis, start, step, x.shape[axis]), x)


@primitive(outputs=0, updates=("whole",), layout=_count_layout)
def insert(whole: Array, x: Array, *, axis: int, start: int) -> None:
    # whole[.., start + k, ..] = x[.., k, ..]
    np.copyto(_places(whole, axis, start, 1, x.shape[axis]), x)


@primitive(permuted, layout=permute_layout)
def permute(out: Array, x: Array, *, axes: Shape) -> None:
    np.copyto(out, np.transpose(x, axes))


def _gather_layout(out: Shape, weight: Shape, ids: Shape) -> Layout:
    return {"dim": weight[0], "vocab": weight[1], "places": ids[0]}


@primitive(lambda weight, ids: (weight[0], *ids), layout=_gather_layout, cheap=True)
def gather_columns(out: Array, weight: Array, ids: Array) -> None:
    # out[i, k] = weight[i, ids[k]]
    np.take(weight, ids, axis=1, out=out)


def _scatter_layout(out: Shape, g: Shape, ids: Shape, **_params: object) -> Layout:
    """With how many words and rows a workgroup has: many, so that ids are seldom read, or few where these are few."""
    for words, rows in ((32, 64), (8, 64), (8, 16)):
        if -(-out[1] // words) * -(-out[0] // rows) >= _BUSY_GROUPS:
            break
    return {"dim": out[0], "places": ids[0], "words": words, "rows": rows, "each": words * rows // 128}


@primitive(lambda g, _ids, *, vocab, first, last: (g[0], vocab), layout=_scatter_layout)
def scatter_columns(out: Array, g: Array, ids: Array, *, vocab: int, first: int, last: int) -> None:
    # Column v of out is the sum of the columns of g, from first to last, whose id is v.
    order = np.argsort(ids[first:last], kind="stable")
    words = ids[first:last][order]
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    out.fill(0)
    if starts.size:
        out[:, words[starts]] = np.add.reduceat(np.take(g[:, first:last], order, 1), starts, 1)
