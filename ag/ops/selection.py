"""Elements by ids and by masks: ``x[key]``, `take`, `gather`; and put, added up or reduced at such places.

Ids count from 0, or from the end if negative.  Those on the host are checked.  Those that a captured step computes are
not: what is no place gives NaN.  Nothing is changed in place.  Of several elements with one id the last one is put
there, and sums are made in the order of the places, so bits are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import inf, prod
from typing import TypeGuard, cast

import numpy as np

from ag.autograd.create import as_tensor, filled
from ag.autograd.frozen import FrozenTensor
from ag.autograd.op import (
    Cotangents,
    Elements,
    Ids,
    Need,
    Result,
    Run,
    composed,
    documented,
    no_gradient,
    part_of,
)
from ag.autograd.operands import checked_ids, host_values, lift, number_given, to_buffer
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike, register
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32
from ag.engine.interpreter import recording_here
from ag.engine.kernels import indexing as kernels
from ag.engine.kernels import packed
from ag.engine.kernels.convert import Placeholder, array_to_upload, host_array
from ag.engine.kernels.elementwise import add, copy, div, mul
from ag.engine.kernels.indexing import resized
from ag.engine.primitive import Array
from ag.engine.shape import Shape, normalize_axis, true_or_false
from ag.errors import CaptureError, DeviceError, DtypeError, ShapeError
from ag.ops.arithmetic import ag_add, ag_clamp, ag_div, ag_scale
from ag.ops.functions import ne, primitive_of, where
from ag.ops.indexing import Index, Place, ag_concat, ag_reshape, ag_slice, ag_transpose, for_all_axes
from ag.ops.shapes import expand as expanded

__all__ = ["ag_embedding_lookup", "argwhere", "gather", "index_add", "index_copy", "index_fill", "index_put",
           "index_select", "masked_scatter", "masked_select", "nonzero", "scatter", "scatter_add", "scatter_reduce",
           "take", "take_along_dim"]

_MOST_PLACES = 1 << 15  # per launch: a driver ends an invocation's loops after 65,535 iterations
Cut = tuple[int, int]  # the first of some axes that ids choose from together, and how many these are


# ---------------------------------------------------------------------------------------------- the primitives


def columns_of(shape: Shape, cut: Cut) -> Shape:
    """Return the shape as one of three axes, of which the middle one has the places."""
    first, count = cut
    return prod(shape[:first]), prod(shape[first : first + count]), prod(shape[first + count :])


def filled_beside(x: Buffer, value: float, shape: Shape) -> Buffer:
    """Return a buffer of one number for sums beside `x`."""
    return filled(shape, value, x.backend, x.dtype.wide).buffer


def numbers(beside: Buffer, count: int, first: int = 0, step: int = 0) -> Buffer:
    """Return whole numbers on the device of a buffer: `first`, ``first + step`` ..."""
    number = beside.backend.constant(np.array(first, np.int32), I32)
    return beside.backend.launch(kernels.sequence, number, count=count, step=step)


def _pieces(count: int) -> list[tuple[int, int]]:
    """Return the first and the last place, which is left out, of each launch."""
    return [(i, min(i + _MOST_PLACES, count)) for i in range(0, max(1, count), _MOST_PLACES)]


def places_by(run: Run, x: Buffer, ids: Buffer, cut: Cut, wraps: bool) -> Buffer:
    """Return the places of some axes by ids, whose axes take their place; with `wraps` negative ones from the end."""
    first, count = cut
    out = run(kernels.take, x.view(columns_of(x.shape, cut)), ids.view((ids.size,)), wraps=wraps)
    return out.view((*x.shape[:first], *ids.shape, *x.shape[first + count :]))


@part_of("take")
def chosen_by(run: Run, x: Elements, ids: Ids, cut: Cut, wraps: bool = False) -> Result[tuple[Buffer, Shape]]:
    return places_by(run, x, ids, cut, wraps), (ids, x.shape)


@part_of("ag_embedding_lookup")
def _lookup(run: Run, weight: Buffer, ids: Ids) -> Result[tuple[Buffer, Shape]]:
    return places_by(run, weight, ids, (1, 1), False), (ids, weight.shape)


@part_of("ag_embedding_lookup")
def rows_of_frozen(run: Run, ids: Ids, table: FrozenTensor) -> Result[None]:
    features, length = table.shape
    out = ids.backend.alloc((features, ids.size), F32)
    run(packed.gather_rows, table.memory.on(ids.backend), ids.view((ids.size,)), into=out, packing=table.packing,
        length=length, features=features)
    return out.view((features, *ids.shape)), None


rows_of_frozen.vjp(no_gradient)


@_lookup.vjp
@chosen_by.vjp
def _taken_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Shape], need: Need, cut: Cut = (1, 1),
               wraps: bool = False) -> Cotangents:
    ids, shape = saved
    return summed_by(run, g, ids, shape, cut, wraps), None


def summed_by(run: Run, g: Buffer, ids: Buffer, shape: Shape, cut: Cut, wraps: bool) -> Buffer:
    """Return what `g` sends to the places of an array of a shape."""
    outer, length, inner = columns_of(shape, cut)
    g, places = g.view((outer, ids.size, inner)), ids.view((ids.size,))
    parts = (run(kernels.scatter_add, g, places, length=length, first=first, last=last, wraps=wraps)
             for first, last in _pieces(ids.size))
    return reduce(lambda total, part: run(add, total, part), parts).view(shape)


def _elements_by(run: Run, x: Buffer, ids: Buffer, axis: int, wraps: bool) -> Buffer:
    x, places = x.view(columns_of(x.shape, (axis, 1))), ids.view(columns_of(ids.shape, (axis, 1)))
    return run(kernels.take, x, places, wraps=wraps).view(ids.shape)


@part_of("gather")
def gathered_by(run: Run, x: Elements, ids: Ids, axis: int, wraps: bool = False) -> Result[tuple[Buffer, Shape]]:
    """Return the places along an axis by an id for each element."""
    return _elements_by(run, x, ids, axis, wraps), (ids, x.shape)


@gathered_by.vjp
def _gathered_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Shape], need: Need, axis: int,
                  wraps: bool = False) -> Cotangents:
    ids, shape = saved
    return met_along(run, filled_beside(g, 0.0, shape), g, ids, axis, kernels.ADD, wraps), None


def met_along(run: Run, out: Buffer, x: Buffer, ids: Buffer, axis: int, how: int, wraps: bool = True) -> Buffer:
    """Let elements of `x` meet those of `out` at their ids along an axis; changes `out`."""
    whole, cut = out.view(columns_of(out.shape, (axis, 1))), (axis, 1)
    x, ids = x.view(columns_of(x.shape, cut)), ids.view(columns_of(ids.shape, cut))
    for first, last in _pieces(x.shape[1]):
        run(kernels.scatter_along, whole, x, ids, how=how, first=first, last=last, wraps=wraps)
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
    """Return one id for several, each with its axis of `x`, which broadcast; a captured step's own may be negative."""
    backend, places, first = x.buffer.backend, np.zeros((), np.int64), given[0][0]
    for ids, _ in given:
        if isinstance(ids, Tensor) and ids.buffer.backend is not backend:
            raise DeviceError(f"{function}: x is on {x.device} and the ids are on {ids.device}; move one with "
                              f"ag_to_device first.")
    if backend.recording is None and not any(isinstance(ids, Placeholder) for ids, _ in given):
        alone = first if len(given) == 1 and isinstance(first, Tensor) and first.buffer.dtype is I32 else None
        for ids, axis in given:  # a download only looks at values; a listener is told of `numpy`
            values = host_values(ids, function) if alone is None else backend.download(alone.buffer)
            count = x.shape[axis]
            _refuse_outside(function, axis, count, values)
            if alone is not None and not (values < 0).any():
                return alone
            places = places * count + np.where(values < 0, values + count, values).astype(np.int64)
        return Tensor(to_buffer(places, backend, I32))
    found = [_on_device(function, x, ids, axis) for ids, axis in given]
    if len(found) == 1:
        return found[0]  # kernels count negative ones from the end
    shape = np.broadcast_shapes(*[ids.shape for ids in found])
    flat = Tensor(numbers(x.buffer, prod(shape)))
    for ids, (_, axis) in zip(found, given, strict=True):
        flat = _flattened(flat, spread_ids(ids, shape), x.shape[axis])
    return flat


def _on_device(function: str, x: Tensor, ids: TensorLike, axis: int) -> Tensor:
    """Return ids of a captured step, which a replay checks if they come from the host."""
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
    before, flat = before.view((ids.size,)), ids.view((ids.size,))
    return run(kernels.flat_ids, before, flat, length=count).view(ids.shape), None


def spread_ids(ids: Tensor, shape: Shape) -> Tensor:
    """Return ids repeated along axes of size 1."""
    ids = ids if ids.ndim == len(shape) else ag_reshape(ids, *(1,) * (len(shape) - ids.ndim), *ids.shape)
    for axis, (n, wanted) in enumerate(zip(ids.shape, shape, strict=True)):
        if n != wanted:
            ids = chosen_by(ids, Tensor(numbers(ids.buffer, wanted)), (axis, 1))
    return ids


@documented
def ag_embedding_lookup(weight: TensorLike | FrozenTensor, idx: ArrayLike) -> Tensor:
    """Columns of a matrix, by number.

    Reference: ggmlR ``ag_embedding`` (which drops the id -1 without a word).

    Parameters
    ----------
    weight : Tensor of shape (dim, vocab), or the transpose of a FrozenTensor
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
    ids = checked_ids("ag_embedding_lookup", weight, idx, shape[1], "id", "ids are 0-based numbers of words", True)
    if isinstance(weight, FrozenTensor):
        if not weight.turned:
            raise ShapeError(f"ag_embedding_lookup: weight, frozen in {weight.packing}, has its blocks along the words "
                             f"and they are required along the features. Freeze the table with a row for each word, "
                             f"and give its transpose, W.T.")
        return rows_of_frozen(ids, weight)
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

    These are whole numbers from ``-n`` to ``n - 1`` for an axis of size n.  Another one is an IndexError on the host,
    and gives NaN if a captured step computes it.
    Reference: PyTorch ``index_select``, which takes a vector of ids only.

    >>> ag.ops.index_select([[1.0, 2.0, 3.0]], 1, [2, 0, -1]).numpy().tolist()
    [[3.0, 1.0, 3.0]]
    """
    x, axis, ids = one_axis("index_select", x, dim, index)
    return chosen_by(x, ids, (axis, 1), True)


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
    return chosen_by(x, ids_of("take", x, [(index, 0)]), (0, 1), True)


def corner_of(function: str, x: Tensor, axis: int, shape: Shape) -> Tensor:
    """Return the part of `x` that ids of a shape choose from along an axis."""
    reached = (*shape[:axis], x.shape[axis], *shape[axis + 1 :])
    if len(shape) != x.ndim or any(n > m for n, m in zip(reached, x.shape, strict=True)):
        raise ShapeError(f"{function}: index is {shape} and x is {x.shape}; as many axes are required, of at most its "
                         f"sizes but along dim {axis}.")
    return x if reached == x.shape else x[tuple(map(slice, reached))]


@composed
def gather(x: TensorLike, dim: int, index: TensorLike) -> Tensor:
    """Take one element along an axis for each id, such as the score of the right class of every sample.

    >>> ag.ops.gather([[0.1, 0.2], [0.8, 0.7]], 0, [[1, 0]]).numpy().round(1).tolist()
    [[0.800000011920929, 0.20000000298023224]]
    """
    x, axis, ids = one_axis("gather", x, dim, index)
    return gathered_by(corner_of("gather", x, axis, ids.shape), ids, axis, True)


@composed
def take_along_dim(x: TensorLike, indices: TensorLike, dim: int | None = None) -> Tensor:
    """Take elements along an axis by ids that broadcast with `x` along the others, such as those of `argmax`.

    Without an axis, all elements are one row.
    Reference: PyTorch ``take_along_dim``, NumPy ``take_along_axis``.

    >>> ag.ops.take_along_dim([[0.5, 2.0], [8.0, 7.0]], [[1], [0]], 1).numpy().tolist()
    [[2.0], [8.0]]
    """
    if dim is None:
        return ag_reshape(take(x, indices), -1)
    x, axis, ids = one_axis("take_along_dim", x, dim, indices)
    if ids.ndim != x.ndim:
        raise ShapeError(f"take_along_dim: indices are {ids.shape} and x is {x.shape}; as many axes are required.")
    shape = np.broadcast_shapes(resized(x.shape, axis, 1), resized(ids.shape, axis, 1))
    return gathered_by(expanded(x, resized(shape, axis, x.shape[axis])),
                       spread_ids(ids, resized(shape, axis, ids.shape[axis])), axis, True)


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
    return Tensor(to_buffer(np.argwhere(truth_of("nonzero", x)), as_tensor(x).buffer.backend, I32))


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


_PLAIN = {int, slice, type(None), type(Ellipsis)}


def getitem(x: Tensor, key: object) -> Tensor:
    """Return ``x[key]``, where the key has ints, slices, None, Ellipsis, ids and masks."""
    keys = key if type(key) is tuple else (key,)
    if _PLAIN.issuperset(map(type, keys)) or not any(map(_chooses, keys)):  # hot path first
        return ag_slice(x, cast(Index, key))
    return chosen_by(*_located(x, keys), True)


def _chooses(key: object) -> bool:
    """Return whether a part of a key has ids or is a mask."""
    return isinstance(key, (Tensor, Placeholder, list)) or (isinstance(key, np.ndarray) and key.ndim > 0)


def _without_truth(key: object) -> object:
    """Return a mask as an array of truth values, and all else as it is."""
    of_truth = _chooses(key) and getattr(key, "dtype", None) == "bool"
    return truth_of("ag_slice", key) if of_truth or (
        isinstance(key, list) and host_array(key, "ag_slice").dtype == bool) else key


def _located(x: Tensor, given: Sequence[object]) -> tuple[Tensor, Tensor, Cut]:
    """Return a part of `x` by the slices of a key, ids of its places, and the axes of which these are."""
    keys = [*map(_without_truth, given)]
    parts: list[object] = []  # of the key, with ids instead of masks
    for k in for_all_axes(keys, x.shape, sum(k.ndim - 1 for k in keys if _is_mask(k))):
        if _is_mask(k):
            at = sum(p is not None for p in parts)
            if k.shape != x.shape[at : at + k.ndim]:
                raise IndexError(f"ag_slice: a mask of shape {k.shape} for axes of sizes {x.shape[at : at + k.ndim]}; "
                                 f"they must be equal.")
        parts += np.nonzero(k) if _is_mask(k) else [k]
    chosen = [i for i, k in enumerate(parts) if _chooses(k)]
    _refuse_doubtful(parts, chosen)
    plain = [slice(None) if i in chosen else cast(Place, k) for i, k in enumerate(parts)]
    ids = ids_of("ag_slice", x, [(cast(TensorLike, parts[i]), sum(k is not None for k in plain[:i])) for i in chosen])
    axes = [_axes_of(plain[:i]) for i in chosen]
    part = x if plain == [slice(None)] * x.ndim else ag_slice(x, tuple(plain))
    if axes[-1] - axes[0] == len(axes) - 1:
        return part, ids, (axes[0], len(axes))
    return ag_transpose(part, *axes, *[i for i in range(part.ndim) if i not in axes]), ids, (0, len(axes))


def _is_mask(key: object) -> TypeGuard[Array]:
    return isinstance(key, np.ndarray) and key.ndim > 0 and key.dtype == bool


def _axes_of(keys: Sequence[object]) -> int:
    """Return how many axes parts of a key leave, of which none has ids."""
    return sum(k is None or isinstance(k, slice) for k in keys)


def _refuse_doubtful(keys: Sequence[object], chosen: list[int]) -> None:
    """Refuse a key with ints apart from its ids, where NumPy and PyTorch order the axes differently."""
    def place(at: list[int]) -> int:
        """Return the place of the first axis of the ids: the front, if an axis is between them."""
        return 0 if _axes_of(keys[at[0] : at[-1]]) else _axes_of(keys[: at[0]])

    if place(chosen) != place([i for i, k in enumerate(keys) if not (k is None or isinstance(k, slice))]):
        raise IndexError("ag_slice: a slice is between an int and ids; NumPy puts the axes of the ids first there, and "
                         "PyTorch does not. Write x[int] and x[ids] one after the other.")


register("__getitem__", getitem)


# ---------------------------------------------------------------------------------------------- putting


@part_of("scatter_add")
def _sums(run: Run, src: Buffer, ids: Ids, shape: Shape, cut: Cut) -> Result[Buffer]:
    """Return the sums of `src` at the places of an array of a shape."""
    return summed_by(run, src, ids, shape, cut, True), ids


@_sums.vjp
def _sums_vjp(run: Run, g: Buffer, ids: Buffer, need: Need, shape: Shape, cut: Cut) -> Cotangents:
    return places_by(run, g.view(shape), ids, cut, True), None


Meeting = tuple[Buffer, tuple[Buffer, Buffer, Buffer] | None]  # the ids; both operands and the result


@part_of("scatter_reduce")
def _met(run: Run, x: Buffer, src: Buffer, ids: Ids, axis: int, how: int) -> Result[Meeting]:
    """Return `x` where elements of `src` have met those at their ids."""
    out = met_along(run, run(copy, x), src, ids, axis, how)
    return out, (ids, None if how == kernels.ADD else (x, src, out))


@_met.vjp
def _met_vjp(run: Run, g: Buffer, saved: Meeting, need: Need, axis: int, how: int) -> Cotangents:
    ids, values = saved
    at_ids = partial(_elements_by, run, ids=ids, axis=axis, wraps=True)
    eq, keep = map(primitive_of, ("eq", "keep"))
    if values is None:
        return g, at_ids(g), None
    x, src, out = values
    zero = x.backend.constant(0.0, x.dtype.wide)
    if how == kernels.MULTIPLY:  # the product of the others, of which one may be 0
        of_x, of_src = (run(eq, t, zero) for t in (x, src))
        zeros = met_along(run, run(copy, of_x), of_src, ids, axis, kernels.ADD)
        rest = met_along(run, run(add, x, of_x), run(add, src, of_src), ids, axis, kernels.MULTIPLY)

        def sent(t: Buffer, is_zero: Buffer, factor: Buffer, count: Buffer) -> Buffer:
            return run(keep, run(eq, count, is_zero), run(div, factor, run(add, t, is_zero)))

        g_rest = run(mul, g, rest)
        return sent(x, of_x, g_rest, zeros), sent(src, of_src, at_ids(g_rest), at_ids(zeros)), None
    of_x, of_src = run(eq, x, out), run(eq, src, at_ids(out))
    equal_share = run(div, g, met_along(run, run(copy, of_x), of_src, ids, axis, kernels.ADD))
    return run(mul, equal_share, of_x), run(mul, at_ids(equal_share), of_src), None


@part_of("scatter")
def _last_of(run: Run, places: Ids, ids: Ids, shape: Shape, axis: int) -> Result[None]:
    none = numbers(ids, prod(shape), kernels.NOTHING).view(shape)
    return met_along(run, none, places, ids, axis, kernels.PUT), None


def _last(ids: Tensor, length: int, axis: int) -> Tensor:
    """Return the last place of `ids` that goes to each of so many places along an axis, or `NOTHING`."""
    n, ones = ids.shape[axis], (1,) * ids.ndim
    places = spread_ids(Tensor(numbers(ids.buffer, n, 0, 1).view(resized(ones, axis, n))), ids.shape)
    return _last_of(places, ids, resized(ids.shape, axis, length), axis)


def _put(x: Tensor, src: Tensor, last: Tensor, read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return `x` with what `read` finds in `src` at the last places that go there."""
    touched = read(Tensor(filled_beside(src.buffer, 1.0, src.shape)), last)
    return where(ne(touched, 0.0), read(src, last), x)


def _placed(x: Tensor, src: Tensor, ids: Tensor, cut: Cut) -> Tensor:
    """Return `x` with places of some axes replaced by those of `src`, which has the axes of the ids there."""
    first, count = cut
    outer, length, inner = columns_of(x.shape, cut)
    last = _last(ag_reshape(ids, -1), length, 0)
    src = expanded(src, (*x.shape[:first], *ids.shape, *x.shape[first + count :]))
    columns = ag_reshape(src, outer, ids.size, inner)
    found = _put(ag_reshape(x, outer, length, inner), columns, last, lambda t, at: chosen_by(t, at, (1, 1)))
    return ag_reshape(found, *x.shape)


def _beside(x: Tensor, src: TensorLike) -> Tensor:
    """Return what is put into `x` as a tensor of its type on its device."""
    return src if isinstance(src, Tensor) else lift(src, x.buffer.backend, x.buffer.dtype, "src")


def _scattered(function: str, x: TensorLike, dim: int, index: TensorLike, src: TensorLike,
               rule: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> Tensor:
    """Apply a rule to the part of `x` that ids reach, and to that of `src`; the rest of `x` stays."""
    x, axis, ids = one_axis(function, x, dim, index)
    src = _beside(x, src)
    src = expanded(src, ids.shape) if not src.ndim else src
    if src.ndim != ids.ndim or any(n > m for n, m in zip(ids.shape, src.shape, strict=True)):
        raise ShapeError(f"{function}: index is {ids.shape} and src is {src.shape}; src must have an element for each "
                         f"id.")
    part = corner_of(function, x, axis, ids.shape)
    found = rule(part, src if src.shape == ids.shape else src[tuple(map(slice, ids.shape))], ids, axis)
    for k, n in enumerate(part.shape):
        if n < x.shape[k]:
            rest = (*(slice(None),) * k, slice(n, None), *map(slice, part.shape[k + 1 :]))
            found = ag_concat([found, x[rest]], k)
    return found


@composed
def scatter_add(x: TensorLike, dim: int, index: TensorLike, src: TensorLike) -> Tensor:
    """Add elements of `src` to those of `x` at their ids along an axis, in the order of the places.

    `index` has as many axes as `x`, of its sizes or less, but for the size along `dim`; `src` has an element for each.

    >>> ag.ops.scatter_add([[0.0, 0.0, 1.0]], 1, [[2, 0, 2]], [[1.0, 2.0, 3.0]]).numpy().tolist()
    [[2.0, 0.0, 5.0]]
    """
    return scatter(x, dim, index, src, "add")


@composed
def scatter(x: TensorLike, dim: int, index: TensorLike, src: TensorLike, reduce: str | None = None) -> Tensor:
    """Put elements of `src` at their ids along an axis; of several with one id, the last is put there.

    Reference: PyTorch ``scatter``, which does not say which of several is put there.

    >>> ag.ops.scatter([[0.0, 0.0, 1.0]], 1, [[0, 2]], [[5.0, 6.0]]).numpy().tolist()
    [[5.0, 0.0, 6.0]]
    """
    if reduce not in (None, "add", "multiply"):
        raise ValueError(f"scatter: reduce is {reduce!r:.40}; use 'add' or 'multiply', or scatter_reduce.")

    def rule(x: Tensor, src: Tensor, ids: Tensor, axis: int) -> Tensor:
        if reduce is not None:
            return _met(x, src, ids, axis, kernels.ADD if reduce == "add" else kernels.MULTIPLY)
        return _put(x, src, _last(ids, x.shape[axis], axis), lambda t, at: gathered_by(t, at, axis))

    return _scattered("scatter", x, dim, index, src, rule)


_MEETING = {"sum": (kernels.ADD, 0.0), "mean": (kernels.ADD, 0.0), "prod": (kernels.MULTIPLY, 1.0),
            "amax": (kernels.LARGER, -inf), "amin": (kernels.SMALLER, inf)}  # how; what begins without that of `x`


@composed
def scatter_reduce(x: TensorLike, dim: int, index: TensorLike, src: TensorLike, reduce: str,
                   include_self: bool = True) -> Tensor:
    """Reduce elements of `src` that have one id, and that of `x` there, along an axis.

    Parameters
    ----------
    x, dim, index, src
        As of `scatter_add`.
    reduce : {"sum", "mean", "prod", "amax", "amin"}
        Equal elements share the gradient of the largest and of the smallest.
    include_self : bool, optional
        Whether the element of `x` counts where others meet it.

    >>> ag.ops.scatter_reduce([[4.0, 4.0]], 1, [[0, 0]], [[5.0, 6.0]], "amax").numpy().tolist()
    [[6.0, 4.0]]
    """
    if reduce not in _MEETING:
        raise ValueError(f"scatter_reduce: reduce is {reduce!r:.40}; use one of {', '.join(map(repr, _MEETING))}.")
    how, neutral = _MEETING[reduce]
    own = true_or_false("scatter_reduce", "include_self", include_self)

    def rule(x: Tensor, src: Tensor, ids: Tensor, axis: int) -> Tensor:
        if not own or reduce == "mean":
            zero, one = (Tensor(filled_beside(t.buffer, n, t.shape)) for n, t in ((0.0, x), (1.0, src)))
            touched = _met(zero, one, ids, axis, kernels.ADD)  # how many meet there
        found = _met(x if own else where(ne(touched, 0.0), neutral, x), src, ids, axis, how)
        if reduce != "mean":
            return found
        return ag_div(found, (ag_add(touched, 1.0) if own else ag_clamp(touched, 1.0)).astype(found.dtype))

    return _scattered("scatter_reduce", x, dim, index, src, rule)


def _along_one(function: str, x: TensorLike, dim: int, index: TensorLike, source: TensorLike
               ) -> tuple[Tensor, Tensor, Tensor, Cut]:
    """Return `x`, what is put there or a number, a vector of ids, and their axis."""
    x, axis, ids = one_axis(function, x, dim, index)
    if ids.ndim > 1:
        raise ShapeError(f"{function}: index is {ids.shape}; a vector of ids is required.")
    source, wanted = _beside(x, source), resized(x.shape, axis, ids.size)
    if source.shape != wanted and function != "index_fill":
        raise ShapeError(f"{function}: source is {source.shape}; {wanted} is required, a place for each id.")
    return x, source, ag_reshape(ids, -1), (axis, 1)


@composed
def index_add(x: TensorLike, dim: int, index: TensorLike, source: TensorLike, alpha: float = 1.0) -> Tensor:
    """Add places of `source`, times `alpha`, to those of `x` that a vector of ids names, in their order.

    >>> ag.ops.index_add([[1.0, 1.0]], 1, [1, 1, 0], [[1.0, 2.0, 4.0]]).numpy().tolist()
    [[5.0, 4.0]]
    """
    x, source, ids, cut = _along_one("index_add", x, dim, index, source)
    added, factor = _sums(source, ids, x.shape, cut), number_given("index_add", "alpha", alpha)
    return ag_add(x, added if factor == 1.0 else ag_scale(added, factor))


@composed
def index_copy(x: TensorLike, dim: int, index: TensorLike, source: TensorLike) -> Tensor:
    """Put places of `source` at those of `x` that a vector of ids names; of several, the last is put there.

    >>> ag.ops.index_copy([[1.0, 1.0]], 1, [1], [[5.0]]).numpy().tolist()
    [[1.0, 5.0]]
    """
    return _placed(*_along_one("index_copy", x, dim, index, source))


@composed
def index_fill(x: TensorLike, dim: int, index: TensorLike, value: float) -> Tensor:
    """Put a number at the places that a vector of ids names.

    >>> ag.ops.index_fill([[1.0, 2.0]], 1, [0], 9.0).numpy().tolist()
    [[9.0, 2.0]]
    """
    return _placed(*_along_one("index_fill", x, dim, index, number_given("index_fill", "value", value)))


@composed
def masked_scatter(x: TensorLike, mask: TensorLike, source: TensorLike) -> Tensor:
    """Put elements of `source` one after the other where a mask is true; reads the mask on the host.

    >>> ag.ops.masked_scatter([[1.0, 2.0, 3.0]], [[True, False, True]], [[8.0, 9.0]]).numpy().tolist()
    [[8.0, 2.0, 9.0]]
    """
    x, found = as_tensor(x), truth_of("masked_scatter", mask)
    shape = np.broadcast_shapes(x.shape, found.shape)
    x, places = expanded(x, shape), np.flatnonzero(np.broadcast_to(found, shape))
    source = _beside(x, source)
    if source.size < len(places):
        raise ShapeError(f"masked_scatter: source has {source.size} elements and the mask is true at {len(places)} "
                         f"places; as many are required.")
    ids = Tensor(to_buffer(places, x.buffer.backend, I32))
    return _placed(x, ag_reshape(source, -1)[: len(places)], ids, (0, x.ndim))


@composed
def index_put(x: TensorLike, indices: object, values: TensorLike, accumulate: bool = False) -> Tensor:
    """Return `x` with ``x[indices]`` replaced; of several with one place, the last is put there.

    `indices` is a key as of ``x[...]``, but without None, and `values` broadcast to ``x[indices]``; `accumulate` adds
    to what is there instead.

    >>> ag.ops.index_put([[1.0, 2.0, 3.0]], (0, [2, 0]), [8.0, 9.0]).numpy().tolist()
    [[9.0, 2.0, 8.0]]
    """
    x = as_tensor(x)
    if not isinstance(indices, tuple):
        raise TypeError(f"index_put: indices is a {type(indices).__name__}; a tuple is required, such as (a, b) "
                        f"for x[a, b].")
    ids = getitem(Tensor(numbers(x.buffer, x.size, 0, 1).view(x.shape)), indices)  # of the place of each element
    values = expanded(_beside(x, values), ids.shape)
    if true_or_false("index_put", "accumulate", accumulate):
        return ag_add(x, _sums(values, ids, x.shape, (0, x.ndim)))
    return _placed(x, values, ids, (0, x.ndim))
