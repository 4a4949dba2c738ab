"""Sum, mean, maximum, minimum and product over any axes; the place of the maximum along one.

Neighbouring axes are reduced as one, and a long one in pieces.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod as product
from typing import cast

from ag.autograd.op import Cotangents, Need, Result, Run, along_axes, no_gradient, op
from ag.engine.buffer import Buffer
from ag.engine.dtype import I32
from ag.engine.kernels import reduce as kernels
from ag.engine.kernels.elementwise import add, div, mul
from ag.engine.kernels.reduce import CHUNK, LONGEST_ROW, equal, expand, stages_of, sum_over
from ag.engine.primitive import PRIMITIVES, PrimitiveTo
from ag.engine.shape import Shape, normalize_axes, normalize_axis, true_or_false
from ag.errors import ShapeError

__all__ = ["ag_max", "ag_mean", "ag_sum", "argmax", "min", "prod"]

Dim = int | tuple[int, ...] | None
Reduced = tuple[Shape, Shape, float]  # the shapes of the operand and of its sum with all axes; the sum's factor


def _reduce(run: Run, x: Buffer, dim: Dim, keepdim: bool, mean: bool, function: str) -> Result[Reduced]:
    axes, keepdim = normalize_axes(dim, len(x.shape), function), true_or_false(function, "keepdim", keepdim)
    of_sum, rest, count = _shapes(x.shape, axes)
    if mean and count == 0:
        raise ShapeError(f"{function}: x is {x.shape} and dim is {dim}; a mean needs at least one element.")
    factor = 1.0 / count if mean else 1.0
    return sum_over(run, x, axes, factor, of_sum if keepdim else rest), (x.shape, of_sum, factor)


@lru_cache(maxsize=1024)
def _shapes(shape: Shape, axes: Shape) -> tuple[Shape, Shape, int]:
    """Of a result whose `axes` stay with size 1, and of one without them; and how many elements become one."""
    return (tuple([1 if a in axes else n for a, n in enumerate(shape)]),
            tuple([n for a, n in enumerate(shape) if a not in axes]), product([shape[a] for a in axes]))


@along_axes
@op
def ag_sum(run: Run, x: Buffer, dim: Dim = None, keepdim: bool = False) -> Result[Reduced]:
    """Sum over some or all axes.

    Long sums are added up in pieces, pairwise, so float32 keeps about seven digits.
    Reference: ggmlR ``ag_sum`` (where dim = 1 are row sums: ``dim=1`` here; dim = 2 is ``dim=0``).

    >>> ag.ag_sum([[1.0, 2.0], [3.0, 4.0]], dim=1).numpy().tolist()
    [3.0, 7.0]
    """
    return _reduce(run, x, dim, keepdim, False, "ag_sum")


@along_axes
@op
def ag_mean(run: Run, x: Buffer, dim: Dim = None, keepdim: bool = False) -> Result[Reduced]:
    """Mean over some or all axes.

    >>> ag.ag_mean([[1.0, 2.0], [3.0, 4.0]]).item()
    2.5
    """
    return _reduce(run, x, dim, keepdim, True, "ag_mean")


@ag_sum.vjp
@ag_mean.vjp
def _reduce_vjp(run: Run, g: Buffer, saved: Reduced, need: Need, dim: Dim, keepdim: bool) -> Cotangents:
    shape, of_sum, factor = saved
    return (run(expand, g.view(of_sum), shape=shape, factor=factor),)


@along_axes
@op
def ag_max(run: Run, x: Buffer, dim: Dim = None, keepdim: bool = False) -> Result[tuple[Buffer, Buffer, Shape]]:
    """Largest element over some or all axes.

    Elements that are equally large share the gradient equally, as in PyTorch's ``amax``.  NaN counts as largest.

    >>> ag.ag_max([[1.0, 4.0], [3.0, 2.0]], dim=1).numpy().tolist()
    [4.0, 3.0]
    """
    return _extreme(run, kernels.max, x, dim, keepdim, "ag_max")


@along_axes
@op
def min(run: Run, x: Buffer, dim: Dim = None, keepdim: bool = False) -> Result[tuple[Buffer, Buffer, Shape]]:
    """Smallest element over some or all axes.

    Equal elements share the gradient equally.  NaN counts as smallest.  Reference: PyTorch ``amin``.

    >>> ag.ops.min([[1.0, 4.0], [3.0, 2.0]], dim=1).numpy().tolist()
    [1.0, 2.0]
    """
    return _extreme(run, kernels.min, x, dim, keepdim, "min")


def _extreme(run: Run, kernel: PrimitiveTo[Buffer], x: Buffer, dim: Dim, keepdim: bool,
             function: str) -> Result[tuple[Buffer, Buffer, Shape]]:
    axes, keepdim = normalize_axes(dim, x.ndim, function), true_or_false(function, "keepdim", keepdim)
    _, rest, count = _shapes(x.shape, axes)
    if count == 0:
        raise ShapeError(f"{function}: x is {x.shape} and dim is {dim}; a {kernel.name}imum needs at least one "
                         f"element.")
    found = _fold_over(run, kernel, x, axes)
    return found if keepdim else found.view(rest), (x, found, axes)


@ag_max.vjp
@min.vjp
def _extreme_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer, Shape], need: Need, dim: Dim,
                 keepdim: bool) -> Cotangents:
    x, found, axes = saved
    is_found = run(equal, x, found)
    return (run(mul, is_found, run(div, g.view(found.shape), sum_over(run, is_found, axes))),)


@along_axes
@op
def prod(run: Run, x: Buffer, dim: Dim = None, keepdim: bool = False) -> Result[tuple[Buffer, Shape]]:
    """Product over some or all axes, 1 of no element; its gradient is right where factors are 0, too.

    Reference: PyTorch ``prod``.

    >>> ag.ops.prod([[2.0, 3.0], [4.0, 0.0]], dim=1).numpy().tolist()
    [6.0, 0.0]
    """
    axes, keepdim = normalize_axes(dim, x.ndim, "prod"), true_or_false("prod", "keepdim", keepdim)
    whole = _fold_over(run, kernels.prod, x, axes)
    return whole if keepdim else whole.view(_shapes(x.shape, axes)[1]), (x, axes)


@prod.vjp
def _prod_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Shape], need: Need, dim: Dim, keepdim: bool) -> Cotangents:
    x, axes = saved
    is_zero = run(equal, x, x.backend.constant(0.0, x.dtype.wide))
    zeros = sum_over(run, is_zero, axes)
    factors = run(add, x, is_zero)  # with 1 in place of 0
    others = run(div, run(mul, _fold_over(run, kernels.prod, factors, axes), g.view(zeros.shape)), factors)
    # of no zero, all; of one, what is sent to that; of more, none
    return (run(cast("PrimitiveTo[Buffer]", PRIMITIVES["keep"]), run(equal, is_zero, zeros), others),)


@op
def argmax(run: Run, x: Buffer, dim: int | None = None, keepdim: bool = False) -> Result[None]:
    """Place of the largest element along an axis, or among all elements; of the first, where several are equal.

    NaN counts as largest.
    Reference: PyTorch ``argmax``.

    Parameters
    ----------
    dim : int, optional

    Returns
    -------
    Tensor of type i32, without the axis

    >>> ag.ops.argmax([[1.0, 4.0], [3.0, 2.0]], dim=1).numpy().tolist()
    [1, 0]
    """
    keepdim = true_or_false("argmax", "keepdim", keepdim)
    shape, axis = (x.shape, normalize_axis(dim, x.ndim, "argmax")) if dim is not None else ((x.size,), 0)
    if shape[axis] == 0:
        raise ShapeError(f"argmax: x is {x.shape} and dim is {dim}; at least one element is required.")
    out = x.backend.alloc((*shape[:axis], 1, *shape[axis + 1 :]), I32)
    run(kernels.argmax, x.view(shape), axis=axis, chunk=shape[axis], into=out)
    kept = out.shape if dim is not None else (1,) * x.ndim
    return out.view(kept if keepdim else (*shape[:axis], *shape[axis + 1 :])), None


argmax.vjp(no_gradient)


def _fold_over(run: Run, kernel: PrimitiveTo[Buffer], x: Buffer, axes: Shape) -> Buffer:
    """A maximum, minimum or product over `axes`, which stay as axes of size 1."""
    stages, kept = stages_of(x.shape, axes)
    for viewed, axis in stages:
        x = x.view(viewed)
        if viewed[axis] > LONGEST_ROW:
            x = run(kernel, x, axis=axis, chunk=CHUNK)
        x = run(kernel, x, axis=axis, chunk=x.shape[axis])
    return x.view(kept)
