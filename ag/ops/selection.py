"""Elements by ids and by masks: ``x[key]``, `take`, `gather`.

Ids count from 0, or from the end if negative.  Those on the host are checked.  Those that a captured step computes are
not: what is no place gives NaN.  Sums are made in the order of the places, so bits are reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor, filled
from ag.autograd.op import Cotangents, Elements, Ids, Need, Result, Run, composed, documented, part_of
from ag.autograd.operands import checked_ids, host_values, to_buffer
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike, register
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32
from ag.engine.interpreter import recording_here
from ag.engine.kernels.convert import Placeholder, array_to_upload, host_array
from ag.engine.kernels.elementwise import add
from ag.engine.kernels.indexing import ADD, flat_ids, scatter_along, sequence
from ag.engine.kernels.indexing import scatter_add as scatter_shared
from ag.engine.kernels.indexing import take as taken
from ag.engine.primitive import Array
from ag.engine.shape import Shape, normalize_axis
from ag.errors import CaptureError, DeviceError, DtypeError, ShapeError
from ag.ops.indexing import Index, Place, ag_reshape, ag_slice, ag_transpose
from ag.ops.shapes import expand as expanded

__all__ = ["ag_embedding_lookup", "argwhere", "gather", "index_select", "masked_select", "nonzero", "take",
           "take_along_dim"]

_MOST_PLACES = 1 << 15  # per launch: a driver ends an invocation's loops after 65,535 iterations
Cut = tuple[int, int]  # the first of some axes that ids choose from together, and how many these are


# ---------------------------------------------------------------------------------------------- the primitives
def columns_of(shape: Shape, cut: Cut) -> Shape:
    """Return the shape as one of three axes, of which the middle one has the places."""
    first, count = cut
    return prod(shape[:first]), prod(shape[first : first + count]), prod(shape[first + count :])


def filled_beside(x: Buffer, value: float, shape: Shape) -> Buffer:
    """Return a buffer of one number for sums beside `x`."""
    return filled(shape, value, x.backend, F32 if x.dtype.is_half else x.dtype).buffer


def numbers(beside: Buffer, count: int, first: int = 0, step: int = 0) -> Buffer:
    """Return whole numbers on the device of a buffer: `first`, ``first + step`` ..."""
    number = beside.backend.constant(np.array(first, np.int32), I32)
    return beside.backend.launch(sequence, number, count=count, step=step)


def _pieces(count: int) -> list[tuple[int, int]]:
    """Return the first and the last place, which is left out, of each launch."""
    return [(i, min(i + _MOST_PLACES, count)) for i in range(0, max(1, count), _MOST_PLACES)]


def places_by(run: Run, x: Buffer, ids: Buffer, cut: Cut) -> Buffer:
    """Return the places of some axes by ids, whose axes take their place."""
    first, count = cut
    out = run(taken, x.view(columns_of(x.shape, cut)), ids.view((ids.size,)))
    return out.view((*x.shape[:first], *ids.shape, *x.shape[first + count :]))


@part_of("take")
def chosen_by(run: Run, x: Elements, ids: Ids, cut: Cut) -> Result[tuple[Buffer, Shape]]:
    return places_by(run, x, ids, cut), (ids, x.shape)


@part_of("ag_embedding_lookup")
def _lookup(run: Run, weight: Buffer, ids: Ids) -> Result[tuple[Buffer, Shape]]:
    return places_by(run, weight, ids, (1, 1)), (ids, weight.shape)


@_lookup.vjp
@chosen_by.vjp
def _taken_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Shape], need: Need, cut: Cut = (1, 1)) -> Cotangents:
    ids, shape = saved
    return summed_by(run, g, ids, shape, cut).view(shape), None


def summed_by(run: Run, g: Buffer, ids: Buffer, shape: Shape, cut: Cut) -> Buffer:
    """Return what `g` sends to the places of an array of a shape."""
    outer, length, inner = columns_of(shape, cut)
    g, places = g.view((outer, ids.size, inner)), ids.view((ids.size,))
    total: Buffer | None = None
    for first, last in _pieces(ids.size):
        part = run(scatter_shared, g, places, length=length, first=first, last=last)
        total = part if total is None else run(add, total, part)
    assert total is not None
    return total


@part_of("gather")
def gathered_by(run: Run, x: Elements, ids: Ids, axis: int) -> Result[tuple[Buffer, Shape]]:
    """Return the places along an axis by an id for each element."""
    out = run(taken, x.view(columns_of(x.shape, (axis, 1))), ids.view(columns_of(ids.shape, (axis, 1))))
    return out.view(ids.shape), (ids, x.shape)


@gathered_by.vjp
def _gathered_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Shape], need: Need, axis: int) -> Cotangents:
    ids, shape = saved
    return met_along(run, filled_beside(g, 0.0, shape), g, ids, axis, ADD), None


def met_along(run: Run, out: Buffer, x: Buffer, ids: Buffer, axis: int, how: int) -> Buffer:
    """Let elements of `x` meet those of `out` at their ids along an axis; changes `out`."""
    whole, cut = out.view(columns_of(out.shape, (axis, 1))), (axis, 1)
    x, ids = x.view(columns_of(x.shape, cut)), ids.view(columns_of(ids.shape, cut))
    for first, last in _pieces(x.shape[1]):
        run(scatter_along, whole, x, ids, how=how, first=first, last=last)
    return out


# ---------------------------------------------------------------------------------------------- ids


def _refuse_outside(function: str, axis: int, count: int, values: Array) -> None:
    if values.dtype.kind not in "iuf":
        raise DtypeError(f"{function}: ids are of type {values.dtype}; whole numbers are required.")
    with np.errstate(all="ignore"):
        whole = values.astype(np.int64)
    if (wrong := values[(whole != values) | (whole < -count) | (whole >= count)]).size:
        raise IndexError(f"{function}: index {wrong.flat[0]} along axis {axis} of size {count}; a whole number in "
                         f"{-count}..{count - 1} is required.")


def ids_of(function: str, x: Tensor, given: Sequence[tuple[TensorLike, int]]) -> Tensor:
    """Return one id for several, each with its axis of `x`, which broadcast."""
    backend = x.buffer.backend
    counts = [x.shape[axis] for _, axis in given]
    if len(given) == 1 and isinstance(ids := given[0][0], Tensor) and ids.buffer.backend is backend and (
            ids.buffer.dtype is I32 and backend.recording is None):
        values = backend.download(ids.buffer)  # which only looks at them; a listener is told of `numpy`
        _refuse_outside(function, given[0][1], counts[0], values)
        if not (values < 0).any():
            return ids
    if backend.recording is None and not any(isinstance(ids, Placeholder) for ids, _ in given):
        places: Array = np.zeros((), np.int64)
        for (ids, axis), count in zip(given, counts, strict=True):
            _refuse_elsewhere(function, x, ids)
            values = host_values(ids, function)
            _refuse_outside(function, axis, count, values)
            places = places * count + np.where(values < 0, values + count, values).astype(np.int64)
        return Tensor(to_buffer(places, backend, I32))
    found = [_on_device(function, x, ids, axis) for ids, axis in given]
    shape = np.broadcast_shapes(*[ids.shape for ids in found])
    flat = Tensor(numbers(x.buffer, prod(shape)))
    for ids, count in zip(found, counts, strict=True):
        flat = _flattened(flat, ag_reshape(spread_ids(ids, shape), -1), count)
    return ag_reshape(flat, *shape)


def _refuse_elsewhere(function: str, x: Tensor, ids: TensorLike) -> None:
    if isinstance(ids, Tensor) and ids.buffer.backend is not x.buffer.backend:
        raise DeviceError(f"{function}: x is on {x.device} and the ids are on {ids.device}; move one with ag_to_device "
                          f"first.")


def _on_device(function: str, x: Tensor, ids: TensorLike, axis: int) -> Tensor:
    """Return ids of a captured step, which a replay checks if they come from the host."""
    _refuse_elsewhere(function, x, ids)
    if isinstance(ids, Tensor):
        if ids.buffer.dtype is not I32:
            raise DtypeError(f"{function}: ids that a captured step computes are of type {ids.dtype}; i32 is required, "
                             f"such as argmax gives.")
        return ids
    values, backend = array_to_upload(ids, function), x.buffer.backend
    check = partial(_refuse_outside, function, axis, x.shape[axis])
    check(values)
    if isinstance(ids, (int, list, tuple)) and not isinstance(ids, Placeholder):  # numbers of the step itself
        return Tensor(backend.constant(values.astype(np.int32), I32))
    buffer = to_buffer(values, backend, I32)
    if backend.recording is not None:
        backend.recording.limits.append((buffer, 0, check))
    return Tensor(buffer)


@part_of("ag_slice")
def _flattened(run: Run, before: Ids, ids: Ids, count: int) -> Result[None]:
    return run(flat_ids, before, ids, length=count), None


def spread_ids(ids: Tensor, shape: Shape) -> Tensor:
    """Return ids repeated along axes of size 1."""
    ids = ag_reshape(ids, *(1,) * (len(shape) - ids.ndim), *ids.shape)
    for axis, (n, wanted) in enumerate(zip(ids.shape, shape, strict=True)):
        if n != wanted:
            ids = chosen_by(ids, Tensor(numbers(ids.buffer, wanted)), (axis, 1))
    return ids


@documented
def ag_embedding_lookup(weight: TensorLike, idx: ArrayLike) -> Tensor:
    """Columns of a matrix, by number.

    The gradient of a word that occurs several times is the sum over its places, in their order, with the same bits
    every time.
    Reference: ggmlR ``ag_embedding`` (which drops the id -1 without a word).

    Parameters
    ----------
    weight : Tensor of shape (dim, vocab)
        One column per word.
    idx : array_like of integers, of any shape S
        0-based ids of words; a tensor is read on the host, unless a captured step computes it: no word gives NaN then.

    Returns
    -------
    Tensor of shape (dim, *S)

    >>> ag.ag_embedding_lookup([[1.0, 2.0, 3.0]], [2, 0, 2]).numpy().tolist()
    [[3.0, 1.0, 3.0]]
    """
    shape = weight.shape if hasattr(weight, "shape") else np.shape(host_array(weight, "ag_embedding_lookup"))
    if len(shape) != 2:
        raise ShapeError(f"ag_embedding_lookup: weight is {shape}; (dim, vocab) is required.")
    ids = checked_ids("ag_embedding_lookup", weight, idx, shape[1], "id", "ids are 0-based numbers of words",
                      True)
    return _lookup(weight, ids)


def one_axis(function: str, x: TensorLike, dim: int, index: TensorLike) -> tuple[Tensor, int, Tensor]:
    """Return `x`, the axis, and an id for every element that `index` has."""
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, function)
    return x, axis, ids_of(function, x, [(index, axis)])


# ---------------------------------------------------------------------------------------------- reading


@composed
def index_select(x: TensorLike, dim: int, index: TensorLike) -> Tensor:
    """Take places along an axis; the axes of `index` stand for it.

    Reference: PyTorch ``index_select``, which takes a vector of ids only.

    Parameters
    ----------
    x : Tensor or array_like
    dim : int
    index : array_like or Tensor of whole numbers, from ``-n`` to ``n - 1`` of an axis of size n

    Returns
    -------
    Tensor

    Raises
    ------
    IndexError
        If an id on the host is outside. One that a captured step computes gives NaN.

    >>> ag.ops.index_select([[1.0, 2.0, 3.0]], 1, [2, 0, -1]).numpy().tolist()
    [[3.0, 1.0, 3.0]]
    """
    x, axis, ids = one_axis("index_select", x, dim, index)
    return chosen_by(x, ids, (axis, 1))


@composed
def take(x: TensorLike, index: TensorLike, dim: int | None = None) -> Tensor:
    """Take elements of `x` as one long axis, or places along an axis.

    Reference: PyTorch ``take``, NumPy ``take``.

    >>> ag.ops.take([[1.0, 2.0], [3.0, 4.0]], [3, 0]).numpy().tolist()
    [4.0, 1.0]
    """
    if dim is not None:
        return index_select(x, dim, index)
    x = ag_reshape(as_tensor(x), -1)
    return chosen_by(x, ids_of("take", x, [(index, 0)]), (0, 1))


def corner_of(function: str, x: Tensor, axis: int, shape: Shape) -> Tensor:
    """Return the part of `x` that ids of a shape choose from along an axis."""
    if len(shape) != x.ndim or any(n > m for k, (n, m) in enumerate(zip(shape, x.shape, strict=True)) if k != axis):
        raise ShapeError(f"{function}: index is {shape} and x is {x.shape}; as many axes are required, of at most its "
                         f"sizes but along dim {axis}.")
    if all(n == m for k, (n, m) in enumerate(zip(shape, x.shape, strict=True)) if k != axis):
        return x
    return x[tuple([slice(None) if k == axis else slice(n) for k, n in enumerate(shape)])]


@composed
def gather(x: TensorLike, dim: int, index: TensorLike) -> Tensor:
    """Take one element along an axis for each id, such as the score of the right class of every sample.

    >>> ag.ops.gather([[0.1, 0.2], [0.8, 0.7]], 0, [[1, 0]]).numpy().round(1).tolist()
    [[0.800000011920929, 0.20000000298023224]]
    """
    x, axis, ids = one_axis("gather", x, dim, index)
    return gathered_by(corner_of("gather", x, axis, ids.shape), ids, axis)


@composed
def take_along_dim(x: TensorLike, indices: TensorLike, dim: int | None = None) -> Tensor:
    """Take elements along an axis by ids that broadcast with `x` along the others, such as those of `argmax`.

    Without an axis, all elements are one row.
    Reference: PyTorch ``take_along_dim``, NumPy ``take_along_axis``.

    >>> ag.ops.take_along_dim([[0.5, 2.0], [8.0, 7.0]], [[1], [0]], 1).numpy().tolist()
    [[2.0], [8.0]]
    """
    x = as_tensor(x)
    if dim is None:
        return ag_reshape(take(x, indices), -1)
    x, axis, ids = one_axis("take_along_dim", x, dim, indices)
    if ids.ndim != x.ndim:
        raise ShapeError(f"take_along_dim: indices are {ids.shape} and x is {x.shape}; as many axes are required.")
    others = [np.broadcast_shapes(*[t.shape[:axis] + t.shape[axis + 1 :] for t in (x, ids)])]
    whole = [(*others[0][:axis], t.shape[axis], *others[0][axis:]) for t in (x, ids)]
    return gathered_by(expanded(x, whole[0]), spread_ids(ids, whole[1]), axis)


# ---------------------------------------------------------------------------------------------- masks


def truth_of(function: str, mask: object) -> Array:
    """Return a mask's truth values on the host, as the size of a result depends on them."""
    if (here := recording_here()) is not None:
        here.refuse(CaptureError(f"{function}: the size of the result depends on the mask's values, which a captured "
                                 f"step cannot read. Use ops.where(mask, x, 0.0), which keeps the size."))
    values = mask.numpy() if isinstance(mask, Tensor) else host_array(mask, function)
    return np.asarray(values != 0)


@composed
def nonzero(x: TensorLike) -> Tensor:
    """Return the ids of the elements that are not 0, one row for each; reads them on the host.

    >>> ag.ops.nonzero([[0.0, 3.0], [4.0, 0.0]]).numpy().tolist()
    [[0, 1], [1, 0]]
    """
    rows = np.argwhere(truth_of("nonzero", x))
    return Tensor(to_buffer(rows, as_tensor(x).buffer.backend, I32))


@composed
def argwhere(x: TensorLike) -> Tensor:
    """Return the ids of the elements that are not 0, as `nonzero`."""
    return nonzero(x)


@composed
def masked_select(x: TensorLike, mask: TensorLike) -> Tensor:
    """Return the elements where a mask is true, as a vector; reads the mask on the host.

    >>> ag.ops.masked_select([[1.0, 2.0]], [[False, True]]).numpy().tolist()
    [2.0]
    """
    x, found = as_tensor(x), truth_of("masked_select", mask)
    shape = np.broadcast_shapes(x.shape, found.shape)
    return getitem(expanded(x, shape), np.broadcast_to(found, shape))


# ---------------------------------------------------------------------------------------------- x[key]


_PLAIN = {int, slice, type(None), type(Ellipsis)}


def getitem(x: Tensor, key: object) -> Tensor:
    """Return ``x[key]``, where the key has ints, slices, None, Ellipsis, ids and masks."""
    keys = key if type(key) is tuple else (key,)
    if _PLAIN.issuperset(map(type, keys)) or not any(map(_chooses, keys)):  # hot path first
        return ag_slice(x, cast(Index, key))
    part, ids, cut = _located("ag_slice", x, keys)
    return chosen_by(part, ids, cut)


def _chooses(key: object) -> bool:
    """Return whether a part of a key has ids or is a mask."""
    return isinstance(key, (Tensor, Placeholder, list)) or (isinstance(key, np.ndarray) and key.ndim > 0)


def _located(function: str, x: Tensor, given: Sequence[object]) -> tuple[Tensor, Tensor, Cut]:
    """Return a part of `x` by the slices of a key, ids of its places, and the axes of which these are."""
    keys: list[object] = [truth_of(function, k) if _is_mask(k) else k for k in given]
    ranks = [np.ndim(cast(Array, k)) if _is_mask(k) else int(k is not None and k is not Ellipsis) for k in keys]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1 or sum(ranks) > x.ndim:
        raise IndexError(f"{function}: {sum(ranks)} indices and {len(dots)} ellipses for a tensor of shape {x.shape}; "
                         f"at most {x.ndim} and one are possible.")
    rest = dots[0] if dots else len(keys)
    keys[rest : rest + 1] = [slice(None)] * (x.ndim - sum(ranks))
    plain: list[Place] = []
    chosen: list[tuple[TensorLike, int]] = []
    axes: list[int] = []  # of the ids, among those of the part
    for k in keys:
        at = len(plain) - sum(p is None for p in plain)
        if _chooses(k):
            given_ids: Sequence[TensorLike] = (cast(TensorLike, k),)
            if _is_mask(k):
                mask = cast(Array, k)
                if mask.shape != x.shape[at : at + mask.ndim]:
                    raise IndexError(f"{function}: a mask of shape {mask.shape} for axes of sizes "
                                     f"{x.shape[at : at + mask.ndim]}; they must be equal.")
                given_ids = np.nonzero(mask)
            for n, ids in enumerate(given_ids, at):
                chosen.append((ids, n))
                axes.append(sum(p is None or isinstance(p, slice) for p in plain))
                plain.append(slice(None))
        else:
            plain.append(cast(Place, k))
    _refuse_doubtful(function, keys)
    ids = ids_of(function, x, chosen)
    part = x if plain == [slice(None)] * x.ndim else ag_slice(x, tuple(plain))
    if axes[-1] - axes[0] == len(axes) - 1:
        return part, ids, (axes[0], len(axes))
    return ag_transpose(part, *axes, *[i for i in range(part.ndim) if i not in axes]), ids, (0, len(axes))


def _is_mask(key: object) -> bool:
    return (_chooses(key) and getattr(key, "dtype", None) == "bool") or (isinstance(key, list) and (
        host_array(key, "ag_slice").dtype == bool))


def _refuse_doubtful(function: str, keys: Sequence[object]) -> None:
    """Refuse a key with ints apart from its ids, where NumPy and PyTorch order the axes differently."""
    kinds = "".join("ids " if _chooses(k) else "axis " if k is None or isinstance(k, slice) else "int "
                    for k in keys).split()

    def place(choosing: set[str]) -> int:
        chosen = [i for i, kind in enumerate(kinds) if kind in choosing]
        return 0 if "axis" in kinds[chosen[0] : chosen[-1]] else kinds[: chosen[0]].count("axis")

    if place({"ids"}) != place({"ids", "int"}):
        raise IndexError(f"{function}: a slice is between an int and ids; NumPy puts the axes of the ids first there, "
                         f"and PyTorch does not. Write x[int] and x[ids] one after the other.")


register("__getitem__", getitem)
