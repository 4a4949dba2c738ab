"""Activation functions, element by element, and their gradients: ``f_grad(v, g)`` is ``g f'``.

`v` is the output y where that gives the derivative (relu, sigmoid, tanh), as the next layer keeps it anyway, else the
input x.
"""

from __future__ import annotations

from functools import partial
from math import pi, sqrt

import numpy as np

from ag.engine.cpu_threads import in_blocks, scratch
from ag.engine.kernels.elementwise import of_numpy
from ag.engine.primitive import Array, Call, primitive

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


# 1 / (1 + exp(-z)) is exact relative to itself also where it is tiny, where (1 + tanh(z / 2)) / 2 has no digits.  Below
# _FAR, exp(-z) may overflow, and it is exp(z).
_FAR = -88.0


def _tail(z: Array) -> tuple[Array, Array] | None:
    """Find where `z` is below `_FAR`, and the roots of exp(z) there: two factors that are not too small."""
    if z.size == 0 or z.item(z.argmin()) >= _FAR:  # NaN counts as smallest
        return None
    far = np.less(z, _FAR)
    return far, np.exp(0.5 * z[far])


def _denominator(z: Array, out: Array) -> None:
    """1 + exp(-z)."""
    np.negative(z, out=out)
    np.exp(out, out=out)
    out += 1


@primitive(bound=True, fusable=True)
@in_blocks
def sigmoid(out: Array, x: Array) -> None:
    tail = _tail(x)
    _denominator(x, out)
    np.divide(1, out, out=out)
    if tail is not None:
        far, root = tail
        out[far] = root * root


@primitive(bound=True, fusable=True)
@in_blocks
def sigmoid_grad(out: Array, y: Array, g: Array) -> None:
    np.multiply(g, y * (1 - y), out=out)


tanh = of_numpy("tanh", np.tanh)


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
    _gated(x, x, out)


def _gated(x: Array, z: Array, out: Array) -> None:
    """x / (1 + exp(-z)); `out` may be `x`."""
    tail = _tail(z)
    ends = None if tail is None else x[tail[0]] * tail[1] * tail[1]
    gate = np.empty_like(z)
    _denominator(z, gate)
    np.divide(x, gate, out=out)
    if tail is not None:
        out[tail[0]] = ends


@primitive(bound=True, fusable=True)
@in_blocks
def silu_grad(out: Array, x: Array, g: Array) -> None:
    power, gate = scratch(out.dtype, [out.shape] * 2)
    _gated_grad(x, x, g, out, power, gate)


def _gated_grad(slope: Array, z: Array, g: Array, out: Array, power: Array, gate: Array) -> None:
    """g s (1 + slope (1 - s)) with s = 1 / (1 + exp(-z)): what x s sends back, if `slope` is x times the slope of z."""
    tail = _tail(z)
    ends = None if tail is None else g[tail[0]] * ((1 + slope[tail[0]]) * tail[1] * tail[1])
    np.negative(z, out=power)
    np.exp(power, out=power)
    np.add(power, 1, out=gate)
    np.divide(1, gate, out=gate)
    power *= gate  # 1 - s
    power *= slope
    power += 1
    power *= gate
    np.multiply(power, g, out=out)
    if tail is not None:
        out[tail[0]] = ends


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


def _normal_cdf(x: Array) -> Array:
    """(1 + erf(x / sqrt(2))) / 2, to an error of 1e-7 of itself in float64, where it is tiny, too."""
    y = x * sqrt(0.5)
    near = np.clip(y, -_NEAR, _NEAR)
    z = near * near
    far = np.clip(np.abs(y), _NEAR, 27.0)  # 1 - erf(27) is 0 in float64
    tail = np.exp(-far * far) * _horner(_R, far) / _horner(_S, far)
    small: Array = 0.5 * (1 + near * _horner(_P, z) / _horner(_Q, z))
    is_near = (np.abs(y) <= _NEAR).astype(x.dtype)  # np.where takes 5 times as long
    is_right = (y > 0).astype(x.dtype)
    cdf: Array = is_near * small + (1 - is_near) * (is_right + (0.5 - is_right) * tail)
    return cdf


@primitive(bound=True, fusable=True)
@in_blocks
def gelu(out: Array, x: Array) -> None:
    np.multiply(x, _normal_cdf(x), out=out)


@primitive(bound=True, fusable=True)
@in_blocks
def gelu_grad(out: Array, x: Array, g: Array) -> None:
    np.multiply(g, _normal_cdf(x) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi), out=out)


# gelu_tanh(x) = x / (1 + exp(-z)) with z = x (_SLOPE + _CUBED x^2), as (1 + tanh(z / 2)) / 2 is 1 / (1 + exp(-z)).
_SLOPE = 2 * sqrt(2 / pi)
_CUBED = 0.044715 * _SLOPE


@primitive(bound=True, fusable=True)
@in_blocks
def gelu_tanh(out: Array, x: Array) -> None:
    (z,) = scratch(out.dtype, [out.shape])
    np.multiply(x, x, out=z)
    z *= _CUBED
    z += _SLOPE
    z *= x
    _gated(x, z, out)


@primitive(bound=True, fusable=True)
@in_blocks
def gelu_tanh_grad(out: Array, x: Array, g: Array) -> None:
    near, z, slope, power, gate = scratch(out.dtype, [out.shape] * 5)
    np.clip(x, -40, 40, out=near)  # the slope is 0 or 1 beyond, where x * x could overflow
    np.multiply(near, near, out=z)
    np.multiply(z, 3 * _CUBED, out=slope)
    slope += _SLOPE
    slope *= near
    z *= _CUBED
    z += _SLOPE
    z *= near
    _gated_grad(slope, z, g, out, power, gate)
