"""Reductions: sum and mean over any axes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ag.buffer import Buffer
from ag.core_primitives import sum_over
from ag.errors import ShapeError
from ag.op import Cotangents, Need, Run, op
from ag.primitive import primitive
from ag.shape import Shape, expand_layout, normalize_axes
from ag.tensor import Array, TensorLike

__all__ = ["ag_mean", "ag_sum"]

Dim = int | tuple[int, ...] | None


@primitive(lambda _x, *, shape, factor: shape, layout=expand_layout)
def expand(out: Array, x: Array, *, shape: Shape, factor: float) -> None:
    np.multiply(x, factor, out=out)


def _reduce(run: Run, x: Any, dim: Dim, keepdim: bool, mean: bool, function: str) -> tuple[Any, Any]:
    axes = normalize_axes(dim, x.ndim, function)
    count = prod(x.shape[a] for a in axes)
    if mean and count == 0:
        raise ShapeError(f"{function}: x is {x.shape} and dim is {dim}; a mean needs at least one element.")
    factor = 1.0 / count if mean else 1.0
    kept = sum_over(run, x, axes, factor)
    out = kept if keepdim else kept.view(tuple(n for a, n in enumerate(x.shape) if a not in axes))
    return out, (x.shape, kept.shape, factor)


def _reduce_vjp(run: Run, g: Buffer, saved: tuple[Shape, Shape, float]) -> Cotangents:
    shape, kept, factor = saved
    return (run(expand, g.view(kept), shape=shape, factor=factor),)


@op
def ag_sum(run: Run, x: TensorLike, dim: Dim = None, keepdim: bool = False) -> tuple[Any, Any]:
    """Sum over some or all axes.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
    dim : int or tuple of int, optional
        Axes that are summed over, as numpy's ``axis``; default: all.
    keepdim : bool, optional
        Keep summed axes with size 1.

    Returns
    -------
    Tensor without the summed axes

    Raises
    ------
    ShapeError
        If `dim` names an axis that `x` does not have, or one twice.

    Notes
    -----
    Long sums are added up in pieces, pairwise, so float32 keeps about seven digits.

    References
    ----------
    ggmlR ``ag_sum`` (where dim = 1 are row sums: ``dim=1`` here; dim = 2 is ``dim=0``).

    Examples
    --------
    >>> import ag
    >>> ag.ag_sum([[1.0, 2.0], [3.0, 4.0]], dim=1).numpy().tolist()
    [3.0, 7.0]
    """
    return _reduce(run, x, dim, keepdim, False, "ag_sum")


@ag_sum.vjp
def _sum_vjp(run: Run, g: Buffer, saved: Any, need: Need, dim: Dim, keepdim: bool) -> Cotangents:
    return _reduce_vjp(run, g, saved)


@op
def ag_mean(run: Run, x: TensorLike, dim: Dim = None, keepdim: bool = False) -> tuple[Any, Any]:
    """Mean over some or all axes.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
    dim : int or tuple of int, optional
        Axes that are averaged over, as numpy's ``axis``; default: all.
    keepdim : bool, optional
        Keep averaged axes with size 1.

    Returns
    -------
    Tensor without the averaged axes

    Raises
    ------
    ShapeError
        If `dim` names an axis that `x` does not have, or one twice, or there is nothing to average.

    References
    ----------
    ggmlR ``ag_mean``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_mean([[1.0, 2.0], [3.0, 4.0]]).item()
    2.5
    """
    return _reduce(run, x, dim, keepdim, True, "ag_mean")


@ag_mean.vjp
def _mean_vjp(run: Run, g: Buffer, saved: Any, need: Need, dim: Dim, keepdim: bool) -> Cotangents:
    return _reduce_vjp(run, g, saved)
