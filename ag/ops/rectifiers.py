"""Rectifiers beyond relu: leaky_relu, silu, gelu.

Their outputs do not tell the inputs (they are not monotonic, or may be scaled by 0), so the rules save the input.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Run, op
from ag.autograd.tensor import Array, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import in_blocks, scratch
from ag.engine.primitive import primitive

__all__ = ["ag_gelu", "ag_leaky_relu", "ag_silu"]


def _slopes(x: Array, slope: float) -> Array:
    return np.take(np.array((slope, 1), x.dtype), x > 0)  # np.where takes 5 times as long


@primitive(bound=True)
@in_blocks
def leaky_relu(out: Array, x: Array, *, slope: float) -> None:
    np.multiply(x, _slopes(x, slope), out=out)


@primitive(bound=True)
@in_blocks
def leaky_relu_grad(out: Array, x: Array, g: Array, *, slope: float) -> None:
    np.multiply(g, _slopes(x, slope), out=out)


@primitive(bound=True)
@in_blocks
def silu(out: Array, x: Array) -> None:
    np.divide(x, 1 + np.exp(-x), out=out)  # where exp overflows the quotient is 0


@primitive(bound=True)
@in_blocks
def silu_grad(out: Array, x: Array, g: Array) -> None:
    gate = 1 / (1 + np.exp(-x))
    np.multiply(g, gate * (1 + x * (1 - gate)), out=out)


# erf(x) = x P(x^2) / Q(x^2) up to _NEAR, and 1 - exp(-x^2) R(x) / S(x) beyond; highest powers first.
# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), 631-637.
_NEAR = 0.46875
_P = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
      3.20937758913846947e3)
_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_R = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
      2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
      1.23033935479799725e3)
_S = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
      3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += c
    return total


def _erf(x: Array) -> Array:
    """The error function, to an absolute error of 1e-15 in float64."""
    near = np.clip(x, -_NEAR, _NEAR)
    z = near * near
    far = np.clip(np.abs(x), _NEAR, 7.0)  # erf(7) is 1 in float64
    tail = np.exp(-far * far) * _horner(_R, far) / _horner(_S, far)
    small: Array = near * _horner(_P, z) / _horner(_Q, z)
    is_near = (np.abs(x) <= _NEAR).astype(x.dtype)  # np.where takes 5 times as long
    erf: Array = is_near * small + (1 - is_near) * np.copysign(1 - tail, x)
    return erf


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + _erf(x * sqrt(0.5)))


@primitive(bound=True)
@in_blocks
def gelu(out: Array, x: Array) -> None:
    np.multiply(x, _normal_cdf(x), out=out)


@primitive(bound=True)
@in_blocks
def gelu_grad(out: Array, x: Array, g: Array) -> None:
    np.multiply(g, _normal_cdf(x) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi), out=out)


_SLOPE = sqrt(2 / pi)
_CUBED = 0.044715 * _SLOPE


@primitive(bound=True)
@in_blocks
def gelu_tanh(out: Array, x: Array) -> None:
    (t,) = scratch(out.dtype, [out.shape])
    _tanh_part(t, x, np.multiply(x, x, out=t))
    np.add(t, 1, out=t)
    np.multiply(t, 0.5, out=t)
    np.multiply(t, x, out=out)


@primitive(bound=True)
@in_blocks
def gelu_tanh_grad(out: Array, x: Array, g: Array) -> None:
    near, t, slope = scratch(out.dtype, [out.shape] * 3)
    np.clip(x, -10, 10, out=near)  # the slope is 0 or 1 beyond, where x * x could overflow
    np.multiply(near, near, out=t)
    np.multiply(t, 3 * _CUBED, out=slope)
    np.add(slope, _SLOPE, out=slope)
    np.multiply(slope, near, out=slope)
    _tanh_part(t, near, t)
    np.multiply(t, t, out=near)
    np.subtract(1, near, out=near)
    np.multiply(slope, near, out=slope)
    np.add(slope, t, out=slope)
    np.add(slope, 1, out=slope)
    np.multiply(slope, 0.5, out=slope)
    np.multiply(slope, g, out=out)


def _tanh_part(out: Array, x: Array, square: Array) -> None:
    """tanh(x (_SLOPE + _CUBED x^2)), given x^2, whose place `out` may take."""
    np.multiply(square, _CUBED, out=out)
    np.add(out, _SLOPE, out=out)
    np.multiply(out, x, out=out)
    np.tanh(out, out=out)


@op
def ag_leaky_relu(run: Run, x: TensorLike, slope: float = 0.01) -> tuple[Any, Any]:
    """Leaky rectified linear unit, ``x`` where ``x > 0``, else ``slope * x``.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
    slope : float, optional
        Slope for negative arguments; no gradient flows to it.

    Returns
    -------
    Tensor of the same shape

    Notes
    -----
    The gradient at 0 is `slope`.

    References
    ----------
    Maas, Hannun, Ng, "Rectifier nonlinearities improve neural network acoustic models", ICML 2013.

    Examples
    --------
    >>> import ag
    >>> ag.ag_leaky_relu([[-2.0, 2.0]], 0.5).numpy().tolist()
    [[-1.0, 2.0]]
    """
    return run(leaky_relu, x, slope=float(slope)), x


@ag_leaky_relu.vjp
def _leaky_relu_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, slope: float) -> Cotangents:
    return (run(leaky_relu_grad, saved, g, slope=float(slope)),)


@op
def ag_silu(run: Run, x: TensorLike) -> tuple[Any, Any]:
    """Sigmoid linear unit (swish), ``x / (1 + exp(-x))``.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape

    Returns
    -------
    Tensor of the same shape

    References
    ----------
    Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units for neural network function approximation in reinforcement
    learning", Neural Networks 107 (2018).

    Examples
    --------
    >>> import ag
    >>> round(ag.ag_silu([[1.0]]).item(), 4)
    0.7311
    """
    return run(silu, x), x


@ag_silu.vjp
def _silu_vjp(run: Run, g: Buffer, saved: Buffer, need: Need) -> Cotangents:
    return (run(silu_grad, saved, g),)


@op
def ag_gelu(run: Run, x: TensorLike, approximate: str = "none") -> tuple[Any, Any]:
    """Gaussian error linear unit, ``x`` times the normal distribution function of ``x``.

    Parameters
    ----------
    x : Tensor, array_like or float, of any shape
    approximate : {"none", "tanh"}, optional
        ``"none"`` is exact, by the error function; ``"tanh"`` the approximation that GPT-2 was trained with.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    ValueError
        If `approximate` is neither of the two.

    References
    ----------
    Hendrycks, Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415.

    Examples
    --------
    >>> import ag
    >>> round(ag.ag_gelu([[1.0]]).item(), 4)
    0.8413
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"ag_gelu: approximate is {approximate!r}; use 'none' or 'tanh'.")
    return run(gelu if approximate == "none" else gelu_tanh, x), x


@ag_gelu.vjp
def _gelu_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, approximate: str) -> Cotangents:
    return (run(gelu_grad if approximate == "none" else gelu_tanh_grad, saved, g),)
