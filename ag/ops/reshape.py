"""Rearranging: reshape and flatten share memory, transpose copies."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Run, op
from ag.autograd.tensor import TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.indexing import permute
from ag.engine.shape import Shape, normalize_axes, normalize_axis, reshaped
from ag.errors import ShapeError

__all__ = ["ag_flatten", "ag_reshape", "ag_transpose"]


@op
def ag_reshape(run: Run, x: TensorLike, *shape: int) -> tuple[Any, Any]:
    """The same elements in another shape, in row-major order.

    Parameters
    ----------
    x : Tensor or array_like of any shape
    *shape : int
        New sizes, or one tuple of them; one may be -1 and is filled in.

    Returns
    -------
    Tensor of the new shape
        Shares memory with `x`.

    Raises
    ------
    ShapeError
        If the number of elements differs.

    References
    ----------
    ggmlR ``ag_reshape`` (column-major there).

    Examples
    --------
    >>> import ag
    >>> ag.ag_reshape([[1.0, 2.0], [3.0, 4.0]], 1, -1).shape
    (1, 4)
    """
    new: Any = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    buffer: Any = x
    return buffer.view(reshaped(buffer.shape, tuple(new), "ag_reshape")), buffer.shape


@ag_reshape.vjp
def _reshape_vjp(run: Run, g: Buffer, saved: Shape, need: Need, *shape: int) -> Cotangents:
    return (g.view(saved),)


@op
def ag_flatten(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """All axes but the last, the batch, as one.

    Parameters
    ----------
    x : Tensor or array_like of shape (..., batch)

    Returns
    -------
    Tensor of shape (features, batch)
        Shares memory with `x`.

    Raises
    ------
    ShapeError
        If `x` is a scalar, which has no batch axis.

    References
    ----------
    PyTorch ``torch.nn.Flatten`` (which keeps the first axis, its batch).

    Examples
    --------
    >>> import ag
    >>> ag.ag_flatten(ag.ag_tensor([[[1.0, 2.0], [3.0, 4.0]]])).shape
    (2, 2)
    """
    buffer: Any = x
    if not buffer.ndim:
        raise ShapeError("ag_flatten: x is (); (..., batch) is required.")
    return buffer.view((prod(buffer.shape[:-1]), buffer.shape[-1])), buffer.shape


@ag_flatten.vjp
def _flatten_vjp(run: Run, g: Buffer, saved: Shape, need: Need) -> Cotangents:
    return (g.view(saved),)


@op
def ag_transpose(run: Run, x: TensorLike, *axes: int) -> tuple[Any, Any]:
    """The axes in another order.

    Parameters
    ----------
    x : Tensor or array_like of any shape
    *axes : int
        The order; default: reversed.

    Returns
    -------
    Tensor with permuted axes
        A copy, dense in the new order.

    Raises
    ------
    ShapeError
        If `axes` is not a permutation of the axes of `x`.

    References
    ----------
    ggmlR ``ag_transpose``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_transpose([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).shape
    (3, 2)
    """
    order: Any = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    ndim = x.ndim  # type: ignore[union-attr]
    if not order:
        order = tuple(reversed(range(ndim)))
    order = tuple(normalize_axis(a, ndim, "ag_transpose") for a in order)
    if len(normalize_axes(order, ndim, "ag_transpose")) != ndim:
        raise ShapeError(f"ag_transpose: axes {order} of a tensor with {ndim} axes; each axis must be named once.")
    return run(permute, x, axes=order), order


@ag_transpose.vjp
def _transpose_vjp(run: Run, g: Buffer, saved: Shape, need: Need, *axes: int) -> Cotangents:
    return (run(permute, g, axes=tuple(int(i) for i in np.argsort(saved))),)
