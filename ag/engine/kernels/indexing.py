"""Kernels that move elements: slices, concatenation, transposition, places by their ids.

Places along an axis are ``start, start + step, ...``; a step may be negative.
"""

from __future__ import annotations

import numpy as np

from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape, axis_layout, permute_layout, permuted

_BUSY_GROUPS = 128  # workgroups that keep a large card busy


def resized(shape: Shape, axis: int, n: int) -> Shape:
    """Return the shape with another size along an axis."""
    return (*shape[:axis], n, *shape[axis + 1 :])


def _count_layout(whole: Shape, part: Shape, *, axis: int, **_params: object) -> Layout:
    return {**axis_layout(whole, whole, axis=axis), "count": part[axis]}


def _places(whole: Array, axis: int, start: int, step: int, count: int) -> Array:
    """The view of `count` places along an axis: `start`, `start + step` …"""
    stop = start + step * count
    return whole[(slice(None),) * axis + (slice(start, stop if stop >= 0 else None, step),)]


@primitive(lambda x, *, axis, start, step, count: resized(x, axis, count), layout=axis_layout, moves=True)
def part(out: Array, x: Array, *, axis: int, start: int, step: int, count: int) -> None:
    # out[.., k, ..] = x[.., start + k step, ..]
    np.copyto(out, _places(x, axis, start, step, count))


@primitive(lambda x, *, axis, start, step, length: resized(x, axis, length), layout=_count_layout, moves=True)
def spread(out: Array, x: Array, *, axis: int, start: int, step: int, length: int) -> None:
    # The adjoint of `part`: out[.., start + k step, ..] = x[.., k, ..], and 0 elsewhere.
    out.fill(0)
    np.copyto(_places(out, axis, start, step, x.shape[axis]), x)


@primitive(outputs=0, updates=("whole",), layout=_count_layout, moves=True)
def insert(whole: Array, x: Array, *, axis: int, start: int) -> None:
    # whole[.., start + k, ..] = x[.., k, ..]
    np.copyto(_places(whole, axis, start, 1, x.shape[axis]), x)


@primitive(permuted, layout=permute_layout, moves=True)
def permute(out: Array, x: Array, *, axes: Shape) -> None:
    np.copyto(out, np.transpose(x, axes))


# ---------------------------------------------------------------------------------------------- by ids

NOTHING = -(1 << 31)  # an id that stands for no place: it takes 0, and what is put there is left out
_NAN_WORD = 0x7FC00000


def _no_place(out: Array) -> Array:
    """Return what an id that is no place gives: NaN, and its bits in an array of whole numbers."""
    if out.dtype == np.uint16:
        return np.array(_NAN_WORD >> 16, np.uint16)
    return np.array(_NAN_WORD, np.int32).view(out.dtype) if out.dtype.itemsize == 4 else np.array(np.nan)


def _from_end(ids: Array, length: int, wraps: bool) -> Array:
    """Return ids of which the negative ones count from the end, if they may."""
    return np.where(ids < 0, ids.astype(np.int64) + length, ids) if wraps else ids


def _take_layout(out: Shape, x: Shape, ids: Shape, **_params: object) -> Layout:
    """With ids of shape (places,) for all rows, or of the shape of the result."""
    steps = (0, 1, 0) if len(ids) == 1 else (ids[1] * ids[2], ids[2], 1)
    return {"outer": x[0], "length": x[1], "inner": x[2], "places": out[1],
            **dict(zip(("step_outer", "step_place", "step_inner"), steps, strict=True))}


@primitive(lambda x, ids, *, wraps: (x[0], ids[0], x[2]) if len(ids) == 1 else ids, layout=_take_layout, cheap=True,
           moves=True)
def take(out: Array, x: Array, ids: Array, *, wraps: bool) -> None:
    # out[o, p, i] = x[o, ids[p], i], or x[o, ids[o, p, i], i]; 0 for NOTHING, and NaN for other ids that are no place
    ids = _from_end(ids, x.shape[1], wraps)
    wanted = np.broadcast_to(ids[:, None] if ids.ndim == 1 else ids, out.shape)
    inside = (wanted >= 0) & (wanted < x.shape[1])
    out[...] = np.where(wanted == NOTHING, out.dtype.type(0), _no_place(out))
    if x.size:
        found = np.take_along_axis(x, np.where(inside, wanted, 0).astype(np.int64), 1)
        np.copyto(out, found, where=inside)


def _scatter_layout(out: Shape, g: Shape, ids: Shape, **_params: object) -> Layout:
    """With how many words and rows a workgroup has: many, so that ids are seldom read, or few where these are few."""
    for words, rows in ((32, 64), (8, 64), (8, 16)):
        if -(-out[1] // words) * -(-out[0] * out[2] // rows) >= _BUSY_GROUPS:
            break
    return {"outer": out[0], "length": out[1], "inner": out[2], "places": ids[0], "words": words, "rows": rows,
            "each": words * rows // 128}


@primitive(lambda g, _ids, *, length, first, last, wraps: (g[0], length, g[2]), layout=_scatter_layout)
def scatter_add(out: Array, g: Array, ids: Array, *, length: int, first: int, last: int, wraps: bool) -> None:
    # out[o, v, i] is the sum of g[o, p, i] over the places p from first to last with ids[p] = v
    ids = _from_end(ids[first:last], length, wraps)
    known = np.flatnonzero((ids >= 0) & (ids < length))
    order = known[np.argsort(ids[known], kind="stable")]
    words = ids[order]
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    out.fill(0)
    if starts.size:
        out[:, words[starts]] = np.add.reduceat(np.take(g[:, first:last], order, 1), starts, 1)
    if len(known) < np.count_nonzero(ids != NOTHING):
        out[:, :1] = np.nan


ADD, MULTIPLY, LARGER, SMALLER, PUT = range(5)  # what `scatter_along` does where two elements meet


def _along_layout(out: Shape, x: Shape, ids: Shape, **_params: object) -> Layout:
    return {"outer": out[0], "length": out[1], "inner": out[2], "places": x[1]}


@primitive(outputs=0, updates=("out",), layout=_along_layout)
def scatter_along(out: Array, x: Array, ids: Array, *, first: int, last: int, how: int, wraps: bool) -> None:
    # out[o, ids[o, p, i], i] and x[o, p, i] become one, for the places p from first to last, in their order
    ids, x = _from_end(ids[:, first:last], out.shape[1], wraps), x[:, first:last]
    o, i = np.arange(x.shape[0])[:, None, None], np.arange(x.shape[2])
    inside = (ids >= 0) & (ids < out.shape[1])
    places = tuple([np.broadcast_to(axis, ids.shape)[inside] for axis in (o, ids, i)])
    with np.errstate(all="ignore"):
        if how == PUT:
            out[places] = x[inside]
        else:
            (np.add, np.multiply, np.maximum, np.minimum)[how].at(out, places, x[inside])
    wrong = (~inside & (ids != NOTHING)).any(1)
    if out.shape[1] and wrong.any():
        out[:, 0].reshape(wrong.shape)[wrong] = _no_place(out)


def _flat_layout(out: Shape, *_shapes: Shape, **_params: object) -> Layout:
    return {"n": out[0]}


@primitive(layout=_flat_layout)
def flat_ids(out: Array, before: Array, ids: Array, *, length: int) -> None:
    # out[k] = before[k] * length + ids[k]; a negative id counts from the end, and what is no place gives 0x7fffffff
    none = np.iinfo(np.int32).max
    before = before.astype(np.int64)
    places = np.where(ids < 0, ids.astype(np.int64) + length, ids)
    known = (places >= 0) & (places < length) & (before >= 0) & (before < none)
    out[...] = np.where(known, before * length + places, none)


@primitive(lambda _first, *, count, step: (count,), layout=_flat_layout)
def sequence(out: Array, first: Array, *, count: int, step: int) -> None:
    # out[k] = first + k step, whole numbers
    np.copyto(out, first + np.arange(count, dtype=out.dtype) * step)
