"""Slices of a tensor, and tensors concatenated along an axis.

A launch works along one axis, the middle one of three.  A slice along several axes is one launch for each.  The class
`ag.autograd.tape.SliceCotangent` leaves out the zeros in the gradient of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import index
from types import EllipsisType
from typing import SupportsIndex

from ag.autograd.op import Cotangents, Elements, Need, Result, Run, along_axes, op
from ag.autograd.tape import SliceCotangent
from ag.engine.buffer import Buffer
from ag.engine.kernels.indexing import insert, part, resized, spread
from ag.engine.shape import Shape, is_whole, normalize_axis
from ag.errors import ShapeError

__all__ = ["ag_concat", "ag_slice"]


# ---------------------------------------------------------------------------------------------- slicing

Place = SupportsIndex | slice | EllipsisType | None
Index = Place | tuple[Place, ...]
Cut = tuple[int, int, int, int]  # an axis; then the first place, the step, and how many places


@op
def ag_slice(run: Run, x: Elements, key: Index) -> Result[tuple[Shape, Shape, list[Cut]]]:
    """A part of a tensor, by numpy's basic indexing; ``t[key]`` is the same.

    Reference: NumPy, "Basic indexing".

    Parameters
    ----------
    x : Tensor or array_like of any shape
    key : int, slice, Ellipsis, None, or a tuple of these
        An int picks one place and drops the axis, a slice may have any step but 0, None adds an axis of size 1.

    Returns
    -------
    Tensor
        A copy, also if nothing is left out.

    Examples
    --------
    >>> t = ag.ag_tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> t[:, ::-2].numpy().tolist()
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

    if len(cuts) == 1 and not g.dtype.is_half:
        axis, start, step, _ = cuts[0]
        if step == 1 and prod(shape[:axis]) == 1:
            return (SliceCotangent(shape, start * prod(shape[axis + 1 :]), g, whole),)
    return (whole(),)


def _cuts(shape: Shape, key: Index) -> tuple[list[Cut], Shape]:
    """Return the cuts that the index `key` makes in an array, and the resulting shape."""
    keys = key if isinstance(key, tuple) else (key,)
    named = sum(k is not None and k is not Ellipsis for k in keys)
    dots = sum(k is Ellipsis for k in keys)
    if named > len(shape) or dots > 1:
        raise IndexError(f"ag_slice: {named} indices and {dots} ellipses for a tensor of shape {shape}; "
                         f"at most {len(shape)} and one are possible.")
    cuts: list[Cut] = []
    sizes: list[int] = []
    axis = 0
    for k in keys if dots else (*keys, Ellipsis):
        if k is None:
            sizes.append(1)
        elif k is Ellipsis:
            skipped = len(shape) - named
            sizes += shape[axis : axis + skipped]
            axis += skipped
        else:
            cut = _cut(k, axis, shape[axis])
            if cut[1:] != (0, 1, shape[axis]):
                cuts.append(cut)
            if isinstance(k, slice):
                sizes.append(cut[3])
            axis += 1
    return cuts, tuple(sizes)


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
        raise TypeError(f"ag_slice: an index is {type(k).__name__}; ints, slices, ... and None are possible.")
    place = index(k)
    if not -n <= place < n:
        raise IndexError(f"ag_slice: index {place} along axis {axis} of size {n}; it must be in {-n}..{n - 1}.")
    return axis, place % n, 1, 1


# ---------------------------------------------------------------------------------------------- joining


@along_axes
@op
def ag_concat(run: Run, tensors: Sequence[Elements], dim: int = 0) -> Result[list[int]]:
    """Join tensors along an axis that they have.

    Parameters
    ----------
    tensors : list or tuple of Tensor or array_like
        At least one; their shapes are equal but for the size along `dim`.
    dim : int, optional
        The axis; default 0, the features.

    Returns
    -------
    Tensor
        Its size along `dim` is the sum of theirs.

    Examples
    --------
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
    start = sizes[0]
    for x in others:
        if x.size:
            run(insert, out, x, axis=axis, start=start)
        start += x.shape[axis]
    return out, sizes


@ag_concat.vjp
def _concat_vjp(run: Run, g: Buffer, saved: list[int], need: Need, dim: int) -> Cotangents:
    return tuple(run(part, g, axis=dim % g.ndim, start=end - count, step=1, count=count) if wanted else None
                 for wanted, count, end in zip(need, saved, accumulate(saved), strict=True))
