"""Reshape, flatten and transpose.

A rule returns a view, which `ag.autograd.op` copies: no result of an op shares memory with its operand.  A captured
step drops the copy where the operand is not needed any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from ag.autograd.op import Cotangents, Elements, Need, Result, Run, op
from ag.engine.buffer import Buffer
from ag.engine.kernels.indexing import permute
from ag.engine.shape import Shape, normalize_axes, normalize_axis, reshaped
from ag.errors import ShapeError

__all__ = ["ag_flatten", "ag_reshape", "ag_transpose"]


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
    x : Tensor or array_like of any shape
    *shape : int
        New sizes, or one tuple of them; one may be -1 and is filled in.

    Returns
    -------
    Tensor of the new shape
        A copy: assigning to `x`, or stepping an optimizer, changes no result, and the other way round.

    Examples
    --------
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
    Tensor of shape (features, batch)
        A copy, as of `ag_reshape`.

    Examples
    --------
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
    x : Tensor or array_like of any shape
    *axes : int
        The order; default: reversed.

    Returns
    -------
    Tensor with permuted axes
        A copy, dense in the new order.

    Examples
    --------
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
