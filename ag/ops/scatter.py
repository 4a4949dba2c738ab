"""Elements put, added up or reduced at places that ids name; nothing is changed in place, a new tensor is returned.

Of several elements with one id the last one is put there, and sums are made in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor
from ag.autograd.op import Cotangents, Ids, Need, Result, Run, composed, part_of
from ag.autograd.operands import as_array, number_given, to_buffer
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32
from ag.engine.kernels.elementwise import add, copy, div, mul
from ag.engine.kernels.indexing import ADD, LARGER, MULTIPLY, NOTHING, PUT, SMALLER
from ag.engine.kernels.indexing import take as taken
from ag.engine.shape import Shape, true_or_false
from ag.errors import ShapeError
from ag.ops import selection
from ag.ops.arithmetic import ag_add, ag_clamp, ag_div, ag_scale
from ag.ops.functions import ne, primitive_of, where
from ag.ops.indexing import ag_concat, ag_reshape
from ag.ops.shapes import expand as expanded

__all__ = ["index_add", "index_copy", "index_fill", "index_put", "masked_scatter", "scatter", "scatter_add",
           "scatter_reduce"]


@part_of("scatter_add")
def _sums(run: Run, src: Buffer, ids: Ids, shape: Shape, cut: selection.Cut) -> Result[Buffer]:
    """Return the sums of `src` at the places of an array of a shape."""
    return selection.summed_by(run, src, ids, shape, cut).view(shape), ids


@_sums.vjp
def _sums_vjp(run: Run, g: Buffer, ids: Buffer, need: Need, shape: Shape, cut: selection.Cut) -> Cotangents:
    return selection.places_by(run, g.view(shape), ids, cut), None


Meeting = tuple[Buffer, tuple[Buffer, Buffer, Buffer] | None]  # the ids; both operands and the result


@part_of("scatter_reduce")
def _met(run: Run, x: Buffer, src: Buffer, ids: Ids, axis: int, how: int) -> Result[Meeting]:
    """Return `x` where elements of `src` have met those at their ids."""
    out = selection.met_along(run, run(copy, x), src, ids, axis, how)
    return out, (ids, None if how == ADD else (x, src, out))


@_met.vjp
def _met_vjp(run: Run, g: Buffer, saved: Meeting, need: Need, axis: int, how: int) -> Cotangents:
    ids, values = saved
    cut = (axis, 1)
    columns = ids.view(selection.columns_of(ids.shape, cut))

    def at_ids(whole: Buffer) -> Buffer:
        return run(taken, whole.view(selection.columns_of(whole.shape, cut)), columns).view(ids.shape)

    if values is None:
        return g, at_ids(g), None
    x, src, out = values
    zero = x.backend.constant(0.0, F32 if x.dtype.is_half else x.dtype)
    if how == MULTIPLY:  # the product of the others, of which one may be 0
        of_x, of_src = (run(primitive_of("eq"), t, zero) for t in (x, src))
        zeros = selection.met_along(run, run(copy, of_x), of_src, ids, axis, ADD)
        rest = selection.met_along(run, run(add, x, of_x), run(add, src, of_src), ids, axis, MULTIPLY)

        def sent(t: Buffer, is_zero: Buffer, factor: Buffer, count: Buffer) -> Buffer:
            without = run(div, factor, run(add, t, is_zero))
            return run(primitive_of("keep"), run(primitive_of("eq"), count, is_zero), without)

        g_rest = run(mul, g, rest)
        return sent(x, of_x, g_rest, zeros), sent(src, of_src, at_ids(g_rest), at_ids(zeros)), None
    of_x, of_src = run(primitive_of("eq"), x, out), run(primitive_of("eq"), src, at_ids(out))
    equal_share = run(div, g, selection.met_along(run, run(copy, of_x), of_src, ids, axis, ADD))
    return run(mul, equal_share, of_x), run(mul, at_ids(equal_share), of_src), None


@part_of("scatter")
def _last(run: Run, ids: Ids, shape: Shape, axis: int) -> Result[None]:
    """Return the last place of `ids` that goes to each place along an axis, or NOTHING."""
    n, whole = ids.shape[axis], (*ids.shape[:axis], shape[axis], *ids.shape[axis + 1 :])
    places = selection.numbers(ids, n, 0, 1).view((*(1,) * axis, n, *(1,) * (len(ids.shape) - axis - 1)))
    places = selection.spread_ids(Tensor(places), ids.shape).buffer
    none = selection.numbers(ids, prod(whole), NOTHING).view(whole)
    return selection.met_along(run, none, places, ids, axis, PUT), None


def _put(x: Tensor, src: Tensor, last: Tensor, read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return `x` with what `read` finds in `src` at the last places that go there."""
    touched = read(Tensor(selection.filled_beside(src.buffer, 1.0, src.shape)), last)
    return where(ne(touched, 0.0), read(src, last), x)


def _placed(x: Tensor, src: Tensor, ids: Tensor, cut: selection.Cut) -> Tensor:
    """Return `x` with places of some axes replaced by those of `src`, which has the axes of the ids there."""
    first, count = cut
    outer, length, inner = selection.columns_of(x.shape, cut)
    last = _last(ag_reshape(ids, -1), (length,), 0)
    src = expanded(src, (*x.shape[:first], *ids.shape, *x.shape[first + count :]))
    columns = ag_reshape(src, outer, ids.size, inner)
    found = _put(ag_reshape(x, outer, length, inner), columns, last, lambda t, at: selection.chosen_by(t, at, (1, 1)))
    return ag_reshape(found, *x.shape)


def _beside(x: Tensor, src: TensorLike) -> Tensor:
    """Return what is put into `x` as a tensor of its type on its device."""
    if isinstance(src, Tensor):
        return src
    dtype = x.buffer.dtype
    return Tensor(x.buffer.backend.constant(src, dtype)) if isinstance(src, (int, float)) else Tensor(
        to_buffer(as_array(src, "src"), x.buffer.backend, dtype))


def _scattered(function: str, x: TensorLike, dim: int, index: TensorLike, src: TensorLike,
               rule: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> Tensor:
    """Apply a rule to the part of `x` that ids reach, and to that of `src`; the rest of `x` stays."""
    x, axis, ids = selection.one_axis(function, x, dim, index)
    src = _beside(x, src)
    src = expanded(src, ids.shape) if not src.ndim else src
    if src.ndim != ids.ndim or any(n > m for n, m in zip(ids.shape, src.shape, strict=True)):
        raise ShapeError(f"{function}: index is {ids.shape} and src is {src.shape}; src must have an element for each "
                         f"id.")
    part = selection.corner_of(function, x, axis, ids.shape)
    found = rule(part, src[tuple([slice(n) for n in ids.shape])] if src.shape != ids.shape else src, ids, axis)
    for k, n in enumerate(part.shape):
        if n < x.shape[k]:
            rest = (*(slice(None),) * k, slice(n, None), *[slice(m) for m in part.shape[k + 1 :]])
            found = ag_concat([found, x[rest]], k)
    return found


@composed
def scatter_add(x: TensorLike, dim: int, index: TensorLike, src: TensorLike) -> Tensor:
    """Add elements of `src` to those of `x` at their ids along an axis, in the order of the places.

    Parameters
    ----------
    x : Tensor or array_like
    dim : int
    index : array_like or Tensor of whole selection.numbers
        As many axes as `x`, of its sizes or less, but for the size along `dim`.
    src : Tensor, array_like or float
        An element for each id.

    Returns
    -------
    Tensor of the shape of `x`, which is not changed

    >>> ag.ops.scatter_add([[0.0, 0.0, 1.0]], 1, [[2, 0, 2]], [[1.0, 2.0, 3.0]]).numpy().tolist()
    [[2.0, 0.0, 5.0]]
    """
    return _scattered("scatter_add", x, dim, index, src, lambda x, src, ids, axis: _met(x, src, ids, axis, ADD))


@composed
def scatter(x: TensorLike, dim: int, index: TensorLike, src: TensorLike, reduce: str | None = None) -> Tensor:
    """Put elements of `src` at their ids along an axis; of several with one id, the last is put there.

    Reference: PyTorch ``scatter``, which does not say which of several is put there.

    >>> ag.ops.scatter([[0.0, 0.0, 1.0]], 1, [[0, 2]], [[5.0, 6.0]]).numpy().tolist()
    [[5.0, 0.0, 6.0]]
    """
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise ValueError(f"scatter: reduce is {reduce!r:.40}; use 'add' or 'multiply', or scatter_reduce.")
        how = ADD if reduce == "add" else MULTIPLY
        return _scattered("scatter", x, dim, index, src, lambda x, src, ids, axis: _met(x, src, ids, axis, how))

    def put(x: Tensor, src: Tensor, ids: Tensor, axis: int) -> Tensor:
        return _put(x, src, _last(ids, x.shape, axis), lambda t, at: selection.gathered_by(t, at, axis))

    return _scattered("scatter", x, dim, index, src, put)


_MEETING = {"sum": (ADD, 0.0), "mean": (ADD, 0.0), "prod": (MULTIPLY, 1.0), "amax": (LARGER, -inf),
            "amin": (SMALLER, inf)}


@composed
def scatter_reduce(x: TensorLike, dim: int, index: TensorLike, src: TensorLike, reduce: str,
                   include_self: bool = True) -> Tensor:
    """Reduce elements of `src` that have one id, and that of `x` there, along an axis.

    Equal ones share the gradient of the largest and of the smallest.

    Parameters
    ----------
    x : Tensor or array_like
    dim : int
    index : array_like or Tensor of whole selection.numbers
        As many axes as `x`, of its sizes or less, but for the size along `dim`.
    src : Tensor, array_like or float
        An element for each id.
    reduce : {"sum", "mean", "prod", "amax", "amin"}
    include_self : bool, optional
        Whether the element of `x` counts where others meet it.

    Returns
    -------
    Tensor of the shape of `x`, which is not changed

    >>> ag.ops.scatter_reduce([[4.0, 4.0]], 1, [[0, 0]], [[5.0, 6.0]], "amax").numpy().tolist()
    [[6.0, 4.0]]
    """
    if reduce not in _MEETING:
        raise ValueError(f"scatter_reduce: reduce is {reduce!r:.40}; use one of {', '.join(map(repr, _MEETING))}.")
    how, neutral = _MEETING[reduce]
    own = true_or_false("scatter_reduce", "include_self", include_self)

    def rule(x: Tensor, src: Tensor, ids: Tensor, axis: int) -> Tensor:
        touched = None
        if not own or reduce == "mean":
            zero, one = (Tensor(selection.filled_beside(t.buffer, n, t.shape)) for n, t in ((0.0, x), (1.0, src)))
            touched = _met(zero, one, ids, axis, ADD)  # how many meet there
        start = x if own else where(ne(cast(Tensor, touched), 0.0), neutral, x)
        found = _met(start, src, ids, axis, how)
        if reduce == "mean":
            count = ag_add(cast(Tensor, touched), 1.0) if own else ag_clamp(cast(Tensor, touched), 1.0)
            found = ag_div(found, count.astype(found.dtype))
        return found

    return _scattered("scatter_reduce", x, dim, index, src, rule)


def _along_one(function: str, x: TensorLike, dim: int, index: TensorLike) -> tuple[Tensor, int, Tensor]:
    """Return `x`, the axis, and a vector of ids."""
    x, axis, ids = selection.one_axis(function, x, dim, index)
    if ids.ndim > 1:
        raise ShapeError(f"{function}: index is {ids.shape}; a vector of ids is required.")
    return x, axis, ag_reshape(ids, -1)


def _as_source(function: str, x: Tensor, axis: int, ids: Tensor, source: TensorLike) -> Tensor:
    source, wanted = _beside(x, source), (*x.shape[:axis], ids.size, *x.shape[axis + 1 :])
    if source.shape != wanted:
        raise ShapeError(f"{function}: source is {source.shape}; {wanted} is required, a place for each id.")
    return source


@composed
def index_add(x: TensorLike, dim: int, index: TensorLike, source: TensorLike, alpha: float = 1.0) -> Tensor:
    """Add places of `source`, times `alpha`, to those of `x` that a vector of ids names, in their order.

    >>> ag.ops.index_add([[1.0, 1.0]], 1, [1, 1, 0], [[1.0, 2.0, 4.0]]).numpy().tolist()
    [[5.0, 4.0]]
    """
    x, axis, ids = _along_one("index_add", x, dim, index)
    added = _sums(_as_source("index_add", x, axis, ids, source), ids, x.shape, (axis, 1))
    factor = number_given("index_add", "alpha", alpha)
    return ag_add(x, added if factor == 1.0 else ag_scale(added, factor))


@composed
def index_copy(x: TensorLike, dim: int, index: TensorLike, source: TensorLike) -> Tensor:
    """Put places of `source` at those of `x` that a vector of ids names; of several, the last is put there.

    >>> ag.ops.index_copy([[1.0, 1.0]], 1, [1], [[5.0]]).numpy().tolist()
    [[1.0, 5.0]]
    """
    x, axis, ids = _along_one("index_copy", x, dim, index)
    return _placed(x, _as_source("index_copy", x, axis, ids, source), ids, (axis, 1))


@composed
def index_fill(x: TensorLike, dim: int, index: TensorLike, value: float) -> Tensor:
    """Put a number at the places that a vector of ids names.

    >>> ag.ops.index_fill([[1.0, 2.0]], 1, [0], 9.0).numpy().tolist()
    [[9.0, 2.0]]
    """
    x, axis, ids = _along_one("index_fill", x, dim, index)
    number = number_given("index_fill", "value", value)
    return _placed(x, expanded(_beside(x, number), (*(1,) * axis, 1, *(1,) * (x.ndim - axis - 1))), ids, (axis, 1))


@composed
def masked_scatter(x: TensorLike, mask: TensorLike, source: TensorLike) -> Tensor:
    """Put elements of `source` one after the other where a mask is true; reads the mask on the host.

    >>> ag.ops.masked_scatter([[1.0, 2.0, 3.0]], [[True, False, True]], [[8.0, 9.0]]).numpy().tolist()
    [[8.0, 2.0, 9.0]]
    """
    x, found = as_tensor(x), selection.truth_of("masked_scatter", mask)
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

    Parameters
    ----------
    x : Tensor or array_like
    indices : tuple
        As the key of ``x[...]``: ids, masks and slices, but no None.
    values : Tensor, array_like or float
        Broadcast to the shape of ``x[indices]``.
    accumulate : bool, optional
        Add to what is there instead.

    Returns
    -------
    Tensor of the shape of `x`, which is not changed

    >>> ag.ops.index_put([[1.0, 2.0, 3.0]], (0, [2, 0]), [8.0, 9.0]).numpy().tolist()
    [[9.0, 2.0, 8.0]]
    """
    x = as_tensor(x)
    if not isinstance(indices, tuple):
        raise TypeError(f"index_put: indices is a {type(indices).__name__}; a tuple is required, such as (a, b) "
                        f"for x[a, b].")
    every = Tensor(selection.numbers(x.buffer, x.size, 0, 1).view(x.shape))  # the place of each element
    ids = selection.getitem(every, indices)
    values = expanded(_beside(x, values), ids.shape)
    if true_or_false("index_put", "accumulate", accumulate):
        return ag_add(x, _sums(values, ids, x.shape, (0, x.ndim)))
    return _placed(x, values, ids, (0, x.ndim))
