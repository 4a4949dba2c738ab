"""Parts, joins, shapes and axes, which only move elements.

`ag.autograd.tape.SliceCotangent` leaves out the zeros in the gradient of a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from operator import index
from types import EllipsisType
from typing import SupportsIndex, cast

import numpy as np

from ag.autograd.op import Cotangents, Elements, Need, Result, Run, along_axes, op
from ag.autograd.tape import SliceCotangent
from ag.engine.buffer import Buffer
from ag.engine.kernels.indexing import insert, part, permute, resized, spread
from ag.engine.shape import Shape, is_whole, normalize_axes, normalize_axis, reshaped
from ag.errors import ShapeError

__all__ = ["ag_concat", "ag_flatten", "ag_reshape", "ag_slice", "ag_transpose"]

Place = SupportsIndex | slice | EllipsisType | None
Index = Place | tuple[Place, ...]
Cut = tuple[int, int, int, int]  # an axis; then the first place, the step, and how many places
_WHOLE = slice(None)


@op
def ag_slice(run: Run, x: Elements, key: Index) -> Result[tuple[Shape, Shape, list[Cut]]]:
    """A part of a tensor, by numpy's basic indexing; ``t[key]`` is the same.

    Reference: NumPy, "Basic indexing".

    Parameters
    ----------
    key : int, slice, Ellipsis, None, or a tuple of these
        An int picks one place and drops the axis, a slice may have any step but 0, None adds an axis of size 1.

    Returns
    -------
    Tensor, a copy

    >>> ag.ag_tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])[:, ::-2].numpy().tolist()
    [[3.0, 1.0], [6.0, 4.0]]
    """
    cuts, shape = _cuts(x.shape, key)
    out = x
    for axis, start, step, count in cuts:
        out = run(part, out, axis=axis, start=start, step=step, count=count)
    return out.view(shape), (x.shape, out.shape, cuts)


@ag_slice.vjp
def _slice_vjp(run: Run, g: Buffer, saved: tuple[Shape, Shape, list[Cut]], need: Need, key: Index) -> Cotangents:
    shape, cut, cuts = saved
    g = g.view(cut)

    def whole() -> Buffer:
        spread_g = g
        for axis, start, step, _ in reversed(cuts):
            spread_g = run(spread, spread_g, axis=axis, start=start, step=step, length=shape[axis])
        return spread_g

    if len(cuts) == 1:
        axis, start, step, _ = cuts[0]
        first = start * prod(shape[axis + 1 :])
        if step == 1 and prod(shape[:axis]) == 1 and not (g.dtype.is_half and (first | g.size) & 1):  # in whole words
            return (SliceCotangent(shape, first, g, whole),)
    return (whole(),)


def _cuts(shape: Shape, key: Index) -> tuple[list[Cut], Shape]:
    """Return the cuts that the index `key` makes in an array, and the resulting shape."""
    cuts: list[Cut] = []
    sizes: list[int] = []
    axis = 0
    for k in for_all_axes(key if isinstance(key, tuple) else (key,), shape):
        if k is None:
            sizes.append(1)
            continue
        cut = (axis, 0, 1, shape[axis]) if k is _WHOLE else _cut(cast(SupportsIndex, k), axis, shape[axis])
        if cut[1:] != (0, 1, shape[axis]):
            cuts.append(cut)
        if isinstance(k, slice):
            sizes.append(cut[3])
        axis += 1
    return cuts, tuple(sizes)


def for_all_axes(keys: Sequence[object], shape: Shape, masked: int = 0) -> list[object]:
    """Return parts of a key without Ellipsis, for all axes; masks stand for so many axes more than for one each."""
    named = sum(k is not None and k is not Ellipsis for k in keys) + masked
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if named > len(shape) or len(dots) > 1:
        raise IndexError(f"ag_slice: {named} indices and {len(dots)} ellipses for a tensor of shape {shape}; "
                         f"at most {len(shape)} and one are possible.")
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *[_WHOLE] * (len(shape) - named), *keys[at + 1 :]]


def _cut(k: SupportsIndex | slice, axis: int, n: int) -> Cut:
    """The cut of one int or slice along an axis of `n` places."""
    if isinstance(k, slice):
        if not all(x is None or is_whole(x) for x in (k.start, k.stop, k.step)):
            raise TypeError(f"ag_slice: {k} along axis {axis} has a bound or a step that is no int; use ints.")
        if k.step == 0:
            raise ValueError(f"ag_slice: {k} along axis {axis} has the step 0; use another step.")
        places = range(*k.indices(n))
        return axis, places.start if places else 0, places.step if len(places) > 1 else 1, len(places)
    if isinstance(k, bool) or not is_whole(k):
        raise TypeError(f"ag_slice: an index is {type(k).__name__}; ints, slices, ..., None, ids "
                        f"and masks are possible.")
    place = index(k)
    if not -n <= place < n:
        raise IndexError(f"ag_slice: index {place} along axis {axis} of size {n}; it must be in {-n}..{n - 1}.")
    return axis, place % n, 1, 1


@along_axes
@op
def ag_concat(run: Run, tensors: Sequence[Elements], dim: int = 0) -> Result[list[int]]:
    """Join tensors along an axis that they have.

    Parameters
    ----------
    tensors : list or tuple of Tensor or array_like
        At least one; their shapes are equal but for the size along `dim`.
    dim : int, optional

    Returns
    -------
    Tensor

    >>> ag.ag_concat([[[1.0, 2.0]], [[3.0, 4.0]]]).numpy().tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    first, *others = tensors
    axis = normalize_axis(dim, first.ndim, "ag_concat")
    for i, x in enumerate(others, 2):
        if x.ndim != first.ndim or resized(x.shape, axis, 0) != resized(first.shape, axis, 0):
            raise ShapeError(f"ag_concat: tensor 1 is {first.shape} and tensor {i} is {x.shape}; "
                             f"the shapes must be equal except along dim {axis}.")
    sizes = [x.shape[axis] for x in tensors]
    out = run(spread, first, axis=axis, start=0, step=1, length=sum(sizes))
    for x, start in zip(others, accumulate(sizes), strict=False):
        if x.size:
            run(insert, out, x, axis=axis, start=start)
    return out, sizes


@ag_concat.vjp
def _concat_vjp(run: Run, g: Buffer, saved: list[int], need: Need, dim: int) -> Cotangents:
    return tuple(run(part, g, axis=dim % g.ndim, start=end - count, step=1, count=count) if wanted else None
                 for wanted, count, end in zip(need, saved, accumulate(saved), strict=True))


def _sizes(numbers: Shape) -> Shape:
    """Numbers that were passed one by one, or as one tuple of them."""
    if len(numbers) != 1 or type(numbers[0]) is int:  # asking a protocol takes a microsecond
        return numbers
    alone: object = numbers[0]
    return tuple(alone) if isinstance(alone, Iterable) else numbers


@op
def ag_reshape(run: Run, x: Elements, *shape: int) -> Result[Shape]:
    """The same elements in another shape, in row-major order.

    Reference: ggmlR ``ag_reshape`` (column-major there).

    Parameters
    ----------
    *shape : int
        New sizes, or one tuple of them; one may be -1 and is filled in.

    Returns
    -------
    Tensor of the new shape
        A copy: assigning to `x`, or stepping an optimizer, changes no result, and the other way round.

    >>> ag.ag_reshape([[1.0, 2.0], [3.0, 4.0]], 1, -1).shape
    (1, 4)
    """
    sizes = shape if len(shape) > 1 else _sizes(shape)
    return x.view(reshaped(x.shape, sizes, "ag_reshape")), x.shape


@op
def ag_flatten(run: Run, x: Elements) -> Result[Shape]:
    """All axes but the last, the batch, as one.

    Reference: PyTorch ``torch.nn.Flatten`` (which keeps the first axis, its batch).

    Parameters
    ----------
    x : Tensor or array_like of shape (..., batch)

    Returns
    -------
    Tensor of shape (features, batch), a copy

    >>> ag.ag_flatten(ag.ag_tensor([[[1.0, 2.0], [3.0, 4.0]]])).shape
    (2, 2)
    """
    if not x.ndim:
        raise ShapeError("ag_flatten: x is (); (..., batch) is required.")
    return x.view((prod(x.shape[:-1]), x.shape[-1])), x.shape


@ag_reshape.vjp
@ag_flatten.vjp
def _reshape_vjp(run: Run, g: Buffer, saved: Shape, need: Need, *_shape: object) -> Cotangents:
    return (g.view(saved),)


@op
def ag_transpose(run: Run, x: Elements, *axes: int) -> Result[Shape]:
    """The axes in another order.

    Parameters
    ----------
    *axes : int
        The order; default: reversed.

    Returns
    -------
    Tensor, a copy

    >>> ag.ag_transpose([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).shape
    (3, 2)
    """
    order = tuple(normalize_axis(a, x.ndim, "ag_transpose") for a in _sizes(axes) or reversed(range(x.ndim)))
    if len(normalize_axes(order, x.ndim, "ag_transpose")) != x.ndim:
        raise ShapeError(f"ag_transpose: axes {order} of a tensor with {x.ndim} axes; each axis must be named once.")
    return run(permute, x, axes=order), order


@ag_transpose.vjp
def _transpose_vjp(run: Run, g: Buffer, saved: Shape, need: Need, *axes: int) -> Cotangents:
    return (run(permute, g, axes=tuple(int(i) for i in np.argsort(saved))),)
