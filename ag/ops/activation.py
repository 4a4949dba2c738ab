"""Activations: relu, sigmoid, tanh, softmax, log_softmax.

Every rule works from the output, which the next layer keeps anyway, so no input is saved twice.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Run, op
from ag.autograd.tensor import Array, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import in_blocks
from ag.engine.primitive import Call, primitive
from ag.engine.shape import Layout, Shape, axis_layout, normalize_axis

__all__ = ["ag_log_softmax", "ag_relu", "ag_sigmoid", "ag_softmax", "ag_tanh", "log_softmax",
           "shared_columns"]

_ZERO = np.zeros((), np.float32)
_SMALL = 1 << 12  # elements; up to here numpy is quickest with operands of one shape
_SHORT, _LONG, _FEW = 32, 1024, 64  # columns that one invocation does; that a workgroup may do, if they are few


def shared_columns(length: int, inner: int, columns: int) -> Layout:
    """How many invocations share a column of `length` elements, `inner` apart, and how many columns a workgroup has."""
    shares = 16
    if length <= _SHORT:
        shares = 1
    elif length >= _LONG and (inner == 1 or columns <= _FEW):
        shares = 128
    return {"shares": shares, "columns": 128 // shares}


def _columns_layout(out: Shape, x: Shape, *_others: Shape, axis: int, **_params: object) -> Layout:
    inner = prod(x[axis + 1 :])
    return {**axis_layout(out, x, axis=axis), **shared_columns(x[axis], inner, prod(x[:axis]) * inner)}


@primitive(bound=True)
def relu(out: Array, x: Array) -> Call:
    return partial(np.maximum, x, np.zeros_like(x) if x.size <= _SMALL else _ZERO, out=out)


@primitive(bound=True)
def relu_grad(out: Array, y: Array, g: Array) -> Call:
    mask = np.empty_like(y)

    def call() -> None:
        np.sign(y, mask)  # y is never negative
        np.multiply(g, mask, out)

    return call


@primitive()
def sigmoid(out: Array, x: Array) -> None:
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)  # the same function, and no overflow at either end
    np.multiply(out, 0.5, out=out)
    np.add(out, 0.5, out=out)


@primitive(bound=True)
@in_blocks
def sigmoid_grad(out: Array, y: Array, g: Array) -> None:
    np.multiply(g, y * (1 - y), out=out)


@primitive(bound=True)
def tanh(out: Array, x: Array) -> Call:
    return partial(np.tanh, x, out)


@primitive(bound=True)
@in_blocks
def tanh_grad(out: Array, y: Array, g: Array) -> None:
    np.multiply(g, 1 - y * y, out=out)


@primitive(layout=_columns_layout)
def softmax(out: Array, x: Array, *, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf), out=out)  # an empty axis is fine
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, axis, keepdims=True), out=out)


@primitive(layout=_columns_layout)
def softmax_grad(out: Array, y: Array, g: Array, *, axis: int) -> None:
    np.multiply(y, g - np.add.reduce(y * g, axis, keepdims=True), out=out)


@primitive(layout=_columns_layout)
def log_softmax(out: Array, x: Array, *, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf), out=out)
    np.subtract(out, np.log(np.add.reduce(np.exp(out), axis, keepdims=True)), out=out)


@primitive(layout=_columns_layout)
def log_softmax_grad(out: Array, y: Array, g: Array, *, axis: int) -> None:
    np.subtract(g, np.exp(y) * np.add.reduce(g, axis, keepdims=True), out=out)


@op
def ag_relu(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """Rectified linear unit, ``max(x, 0)``.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape

    Returns
    -------
    Tensor of the same shape

    Notes
    -----
    The gradient at 0 is 0.

    References
    ----------
    ggmlR ``ag_relu``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_relu([[-1.0, 2.0]]).numpy().tolist()
    [[0.0, 2.0]]
    """
    out = run(relu, x)
    return out, out


@ag_relu.vjp
def _relu_vjp(run: Run, g: Buffer, saved: Buffer, need: Need) -> Cotangents:
    return (run(relu_grad, saved, g),)


@op
def ag_sigmoid(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """Logistic function, ``1 / (1 + exp(-x))``.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape

    Returns
    -------
    Tensor of the same shape

    Notes
    -----
    Exact limits 0 and 1 for large arguments of either sign; nothing overflows.

    References
    ----------
    ggmlR ``ag_sigmoid``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_sigmoid([[0.0]]).item()
    0.5
    """
    out = run(sigmoid, x)
    return out, out


@ag_sigmoid.vjp
def _sigmoid_vjp(run: Run, g: Buffer, saved: Buffer, need: Need) -> Cotangents:
    return (run(sigmoid_grad, saved, g),)


@op
def ag_tanh(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """Hyperbolic tangent.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape

    Returns
    -------
    Tensor of the same shape

    References
    ----------
    ggmlR ``ag_tanh``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_tanh([[0.0]]).item()
    0.0
    """
    out = run(tanh, x)
    return out, out


@ag_tanh.vjp
def _tanh_vjp(run: Run, g: Buffer, saved: Buffer, need: Need) -> Cotangents:
    return (run(tanh_grad, saved, g),)


@op
def ag_softmax(run: Run, x: TensorLike, dim: int = 0) -> tuple[Any, Any]:
    """Softmax along one axis: positive numbers that sum to 1.

    Parameters
    ----------
    x : Tensor or array_like of shape (features, batch), or any other
    dim : int, optional
        Axis that sums to 1; default 0, the features, so each sample is normalised.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    ShapeError
        If `dim` is not an axis of `x`.

    Notes
    -----
    The maximum is subtracted first, so nothing overflows.

    References
    ----------
    ggmlR ``ag_softmax``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_softmax([[1.0], [1.0]]).numpy().tolist()
    [[0.5], [0.5]]
    """
    out = run(softmax, x, axis=normalize_axis(dim, x.ndim, "ag_softmax"))  # type: ignore[union-attr]
    return out, out


@ag_softmax.vjp
def _softmax_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, dim: int) -> Cotangents:
    return (run(softmax_grad, saved, g, axis=dim % g.ndim),)


@op
def ag_log_softmax(run: Run, x: TensorLike, dim: int = 0) -> tuple[Any, Any]:
    """Logarithm of the softmax along one axis.

    Parameters
    ----------
    x : Tensor or array_like of shape (features, batch), or any other
    dim : int, optional
        Axis along which the probabilities sum to 1; default 0, the features.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    ShapeError
        If `dim` is not an axis of `x`.

    Notes
    -----
    Exact where the softmax itself is too small to be held.

    References
    ----------
    PyTorch ``torch.nn.functional.log_softmax``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_log_softmax([[0.0], [1000.0]]).numpy().tolist()
    [[-1000.0], [0.0]]
    """
    out = run(log_softmax, x, axis=normalize_axis(dim, x.ndim, "ag_log_softmax"))  # type: ignore[union-attr]
    return out, out


@ag_log_softmax.vjp
def _log_softmax_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, dim: int) -> Cotangents:
    return (run(log_softmax_grad, saved, g, axis=dim % g.ndim),)
