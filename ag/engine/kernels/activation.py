"""Activation functions, element by element, and their gradients: ``f_grad(v, g)`` is ``g f'``.

`v` is the output y where that gives the derivative (relu, sigmoid, tanh), as the next layer keeps it anyway, else the
input x.  All are `fusable`, so their kernels are rows of shaders/functions.glsl.
"""

from __future__ import annotations

from functools import partial
from math import pi, sqrt

import numpy as np

from ag.engine.cpu_threads import in_blocks, scratch
from ag.engine.primitive import Array, Call, primitive

__all__ = ["relu", "relu_grad", "sigmoid", "sigmoid_grad", "tanh", "tanh_grad", "gelu", "gelu_grad", "gelu_tanh",
           "gelu_tanh_grad", "leaky_relu", "leaky_relu_grad", "silu", "silu_grad"]

_ZERO = np.zeros((), np.float32)
_SMALL = 1 << 12  # elements; up to here numpy is quickest with operands of one shape


@primitive(bound=True, fusable=True)
def relu(out: Array, x: Array) -> Call:
    return partial(np.maximum, x, np.zeros_like(x) if x.size <= _SMALL else _ZERO, out=out)


@primitive(bound=True, fusable=True)
def relu_grad(out: Array, y: Array, g: Array) -> Call:
    mask = np.empty_like(y)

    def call() -> None:
        np.sign(y, mask)  # y is never negative
        np.multiply(g, mask, out)

    return call


@primitive(fusable=True)
def sigmoid(out: Array, x: Array) -> None:
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)  # the same function, and no overflow at either end
    np.multiply(out, 0.5, out=out)
    np.add(out, 0.5, out=out)


@primitive(bound=True, fusable=True)
@in_blocks
def sigmoid_grad(out: Array, y: Array, g: Array) -> None:
    np.multiply(g, y * (1 - y), out=out)


@primitive(bound=True, fusable=True)
def tanh(out: Array, x: Array) -> Call:
    return partial(np.tanh, x, out)


@primitive(bound=True, fusable=True)
@in_blocks
def tanh_grad(out: Array, y: Array, g: Array) -> None:
    np.multiply(g, 1 - y * y, out=out)


def _slopes(x: Array, slope: float) -> Array:
    return np.take(np.array((slope, 1), x.dtype), x > 0)  # np.where takes 5 times as long


@primitive(bound=True, fusable=True)
@in_blocks
def leaky_relu(out: Array, x: Array, *, slope: float) -> None:
    np.multiply(x, _slopes(x, slope), out=out)


@primitive(bound=True, fusable=True)
@in_blocks
def leaky_relu_grad(out: Array, x: Array, g: Array, *, slope: float) -> None:
    np.multiply(g, _slopes(x, slope), out=out)


@primitive(bound=True, fusable=True)
@in_blocks
def silu(out: Array, x: Array) -> None:
    np.divide(x, 1 + np.exp(-x), out=out)  # where exp overflows the quotient is 0


@primitive(bound=True, fusable=True)
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


@primitive(bound=True, fusable=True)
@in_blocks
def gelu(out: Array, x: Array) -> None:
    np.multiply(x, _normal_cdf(x), out=out)


@primitive(bound=True, fusable=True)
@in_blocks
def gelu_grad(out: Array, x: Array, g: Array) -> None:
    np.multiply(g, _normal_cdf(x) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi), out=out)


_SLOPE = sqrt(2 / pi)
_CUBED = 0.044715 * _SLOPE


@primitive(bound=True, fusable=True)
@in_blocks
def gelu_tanh(out: Array, x: Array) -> None:
    (t,) = scratch(out.dtype, [out.shape])
    _tanh_part(t, x, np.multiply(x, x, out=t))
    np.add(t, 1, out=t)
    np.multiply(t, 0.5, out=t)
    np.multiply(t, x, out=out)


@primitive(bound=True, fusable=True)
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
