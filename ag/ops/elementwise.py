"""Elementwise arithmetic: add, subtract, multiply, divide with broadcasting; scale, power, exp, log, clamp.

Each op is one or two primitives whose numpy reference is one line.  Broadcasting needs no thought in the gradient
rules: the tape sums a cotangent back to its operand's shape.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ag.backend import Buffer
from ag.core_primitives import add
from ag.op import Run, op
from ag.primitive import primitive
from ag.shape import broadcast, broadcast_layout
from ag.tensor import Array, TensorLike

__all__ = ["ag_add", "ag_clamp", "ag_div", "ag_exp", "ag_log", "ag_mul", "ag_pow", "ag_scale", "ag_sub"]

Cotangents = tuple[Buffer | None, ...]
Need = tuple[bool, ...]


@primitive(broadcast, layout=broadcast_layout)
def sub(out: Array, a: Array, b: Array) -> None:
    np.subtract(a, b, out=out)


@primitive(broadcast, layout=broadcast_layout)
def mul(out: Array, a: Array, b: Array) -> None:
    np.multiply(a, b, out=out)


@primitive(broadcast, layout=broadcast_layout)
def div(out: Array, a: Array, b: Array) -> None:
    np.divide(a, b, out=out)


@primitive()
def scale(out: Array, x: Array, *, factor: float) -> None:
    np.multiply(x, factor, out=out)


@primitive()
def exp(out: Array, x: Array) -> None:
    np.exp(x, out=out)


@primitive()
def log(out: Array, x: Array) -> None:
    np.log(x, out=out)


@primitive()
def pow(out: Array, x: Array, *, p: float) -> None:
    np.power(x, p, out=out)


@primitive()
def pow_grad(out: Array, x: Array, g: Array, *, p: float) -> None:
    np.multiply(g, p * np.power(x, p - 1) if p != 0 else 0.0, out=out)


@primitive()
def clamp(out: Array, x: Array, *, lo: float, hi: float) -> None:
    np.minimum(np.maximum(x, lo), hi, out=out)


@primitive()
def clamp_grad(out: Array, x: Array, g: Array, *, lo: float, hi: float) -> None:
    np.multiply(g, (x >= lo) & (x <= hi), out=out)


@op
def ag_add(run: Run, A: TensorLike, B: TensorLike) -> tuple[Any, Any]:
    """Sum of two tensors, with broadcasting both ways.

    Parameters
    ----------
    A, B : Tensor, array_like or float, of shapes that broadcast
        Operands; axes are matched from the last, sizes must be equal or 1.

    Returns
    -------
    Tensor of the broadcast shape

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    DeviceError
        If the operands are on different devices.

    References
    ----------
    ggmlR ``ag_add`` (which broadcasts one way only).

    Examples
    --------
    >>> import ag
    >>> ag.ag_add([[1.0], [2.0]], [[10.0, 20.0]]).numpy().tolist()
    [[11.0, 21.0], [12.0, 22.0]]
    """
    return run(add, A, B), None


@ag_add.vjp
def _add_vjp(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    return g, g


@op
def ag_sub(run: Run, A: TensorLike, B: TensorLike) -> tuple[Any, Any]:
    """Difference of two tensors, with broadcasting both ways.

    Parameters
    ----------
    A, B : Tensor, array_like or float, of shapes that broadcast
        Operands; axes are matched from the last, sizes must be equal or 1.

    Returns
    -------
    Tensor of the broadcast shape

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    DeviceError
        If the operands are on different devices.

    References
    ----------
    ggmlR ``ag_sub``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_sub([[1.0], [2.0]], 1.0).numpy().tolist()
    [[0.0], [1.0]]
    """
    return run(sub, A, B), None


@ag_sub.vjp
def _sub_vjp(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    return g, run(scale, g, factor=-1.0) if need[1] else None


@op
def ag_mul(run: Run, A: TensorLike, B: TensorLike) -> tuple[Any, Any]:
    """Elementwise product of two tensors, with broadcasting both ways.

    Parameters
    ----------
    A, B : Tensor, array_like or float, of shapes that broadcast
        Operands; axes are matched from the last, sizes must be equal or 1.

    Returns
    -------
    Tensor of the broadcast shape

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    DeviceError
        If the operands are on different devices.

    References
    ----------
    ggmlR ``ag_mul``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_mul([[1.0, 2.0]], [[3.0], [4.0]]).numpy().tolist()
    [[3.0, 6.0], [4.0, 8.0]]
    """
    return run(mul, A, B), (A, B)


@ag_mul.vjp
def _mul_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    a, b = saved
    return run(mul, g, b) if need[0] else None, run(mul, g, a) if need[1] else None


@op
def ag_div(run: Run, A: TensorLike, B: TensorLike) -> tuple[Any, Any]:
    """Elementwise quotient of two tensors, with broadcasting both ways.

    Parameters
    ----------
    A, B : Tensor, array_like or float, of shapes that broadcast
        Dividend and divisor.

    Returns
    -------
    Tensor of the broadcast shape

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    DeviceError
        If the operands are on different devices.

    Notes
    -----
    Division by zero follows IEEE 754: an infinity, or NaN for 0/0.

    References
    ----------
    ggmlR ``ag_div``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_div([[1.0, 2.0]], 4.0).numpy().tolist()
    [[0.25, 0.5]]
    """
    out = run(div, A, B)
    return out, (B, out)


@ag_div.vjp
def _div_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    b, out = saved
    over_b = run(div, g, b)  # d(a/b)/db = -(a/b)/b
    return over_b, run(scale, run(mul, over_b, out), factor=-1.0) if need[1] else None


@op
def ag_scale(run: Run, x: TensorLike, scalar: float) -> tuple[Any, Any]:
    """A tensor times a constant.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
    scalar : float
        The factor; no gradient flows to it.

    Returns
    -------
    Tensor of the same shape

    Notes
    -----
    In a captured step the factor is a constant.

    References
    ----------
    ggmlR ``ag_scale``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_scale([[1.0, 2.0]], 3.0).numpy().tolist()
    [[3.0, 6.0]]
    """
    return run(scale, x, factor=float(scalar)), None


@ag_scale.vjp
def _scale_vjp(run: Run, g: Buffer, saved: None, need: Need, scalar: float) -> Cotangents:
    return (run(scale, g, factor=float(scalar)),)


@op
def ag_pow(run: Run, x: TensorLike, p: float) -> tuple[Any, Any]:
    """Elementwise power with a constant exponent.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
        Bases; negative ones are fine for integer `p` and give NaN otherwise.
    p : float
        The exponent; no gradient flows to it.

    Returns
    -------
    Tensor of the same shape

    Notes
    -----
    The gradient is ``p * x**(p - 1)``, and 0 everywhere for ``p == 0``.

    References
    ----------
    ggmlR ``ag_pow`` (whose GPU version gives NaN for every negative base).

    Examples
    --------
    >>> import ag
    >>> ag.ag_pow([[-2.0, 3.0]], 3).numpy().tolist()
    [[-8.0, 27.0]]
    """
    return run(pow, x, p=float(p)), x


@ag_pow.vjp
def _pow_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, p: float) -> Cotangents:
    return (run(pow_grad, saved, g, p=float(p)),)


@op
def ag_exp(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """Elementwise exponential.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape

    Returns
    -------
    Tensor of the same shape

    References
    ----------
    ggmlR ``ag_exp``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_exp([[0.0]]).item()
    1.0
    """
    out = run(exp, x)
    return out, out


@ag_exp.vjp
def _exp_vjp(run: Run, g: Buffer, saved: Buffer, need: Need) -> Cotangents:
    return (run(mul, g, saved),)


@op
def ag_log(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """Elementwise natural logarithm.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
        Positive numbers; 0 gives -inf and negative numbers NaN.

    Returns
    -------
    Tensor of the same shape

    References
    ----------
    ggmlR ``ag_log``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_log([[1.0]]).item()
    0.0
    """
    return run(log, x), x


@ag_log.vjp
def _log_vjp(run: Run, g: Buffer, saved: Buffer, need: Need) -> Cotangents:
    return (run(div, g, saved),)


@op
def ag_clamp(run: Run, x: TensorLike, lo: float = -inf, hi: float = inf) -> tuple[Any, Any]:
    """Limit every element to an interval.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
    lo, hi : float, optional
        Ends of the interval; ``lo <= hi``.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    ValueError
        If ``lo > hi``.

    Notes
    -----
    The gradient is 1 for ``lo <= x <= hi``, ends included, and 0 outside.

    References
    ----------
    ggmlR ``ag_clamp``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_clamp([[-2.0, 0.5, 2.0]], -1.0, 1.0).numpy().tolist()
    [[-1.0, 0.5, 1.0]]
    """
    if lo > hi:
        raise ValueError(f"ag_clamp: lo is {lo} and hi is {hi}; lo must not be larger than hi.")
    return run(clamp, x, lo=float(lo), hi=float(hi)), x


@ag_clamp.vjp
def _clamp_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, lo: float, hi: float) -> Cotangents:
    return (run(clamp_grad, saved, g, lo=float(lo), hi=float(hi)),)
