"""Test what the case table cannot say of its pointwise family: ties, far ends of functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag
from ag import ops

Array = np.ndarray[Any, Any]


def test_equal_maxima_share_the_gradient(device: str) -> None:
    x = ag.ag_param([[1.0, 3.0, 3.0], [5.0, 2.0, 4.0], [7.0, 7.0, 7.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_max(x, dim=1) * [1.0, 10.0, 100.0])
    want = np.array([[0, 0.5, 0.5], [10, 0, 0], [100 / 3] * 3], np.float32)
    np.testing.assert_allclose(ag.backward(loss)[x].numpy(), want, rtol=1e-6)


def test_activations_at_far_ends(device: str) -> None:
    far = [[-3e38, -100.0, 100.0, 3e38]]
    for f in (ag.ag_silu, ag.ag_gelu, lambda x: ag.ag_gelu(x, "tanh")):
        x = ag.ag_param(far)
        with ag.with_grad_tape():
            y = f(x)
            loss = ag.ag_sum(y * 0.25)
        np.testing.assert_allclose(y.numpy(), [[0, 0, *far[0][2:]]], atol=1e-37)
        grads = ag.backward(loss)
        np.testing.assert_allclose(grads[x].numpy(), [[0, 0, 0.25, 0.25]], atol=1e-30)


def gate(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def stretched(x: float) -> float:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


SELU = 1.0507009873554805, 1.6732632423543772
# Each with its slope, where that is no function of the result.
TAILS: dict[str, tuple[Callable[[Any], ag.Tensor], Callable[[float], float], Callable[[float], float]]] = {
    "sigmoid": (ag.ag_sigmoid, gate, lambda x: gate(x) * gate(-x)),
    "silu": (ag.ag_silu, lambda x: x * gate(x), lambda x: gate(x) * (1 + x * gate(-x))),
    "gelu": (ag.ag_gelu, lambda x: x * normal_cdf(x),
             lambda x: normal_cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    "gelu_tanh": (lambda x: ag.ag_gelu(x, "tanh"), lambda x: x * gate(stretched(x)), lambda x: gate(stretched(x)) * (
        1 + x * 2 * math.sqrt(2 / math.pi) * (1 + 0.134145 * x * x) * gate(-stretched(x)))),
    "elu": (ops.elu, lambda x: x if x > 0 else math.expm1(x), lambda x: math.exp(min(x, 0))),
    "celu": (lambda x: ops.celu(x, 2.0), lambda x: x if x > 0 else 2 * math.expm1(x / 2), lambda x: math.exp(x / 2)),
    "selu": (ops.selu, lambda x: SELU[0] * (x if x > 0 else SELU[1] * math.expm1(x)),
             lambda x: SELU[0] * SELU[1] * math.exp(x)),
}
SMALLEST = 2.4e-38  # twice the smallest normal number of float32; smaller factors may be 0 on a device


def relative_error(got: Array, want: list[float]) -> float:
    """The largest one; results below the smallest normal number may be anything down to 0."""
    exact = np.array(want)
    seen = np.abs(exact) > SMALLEST
    assert np.isfinite(got).all() and np.all(np.abs(got[~seen]) <= 2 * SMALLEST)
    return float(np.abs(got[seen] / exact[seen] - 1).max())


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("fused", [
    pytest.param(False, id="alone"), pytest.param(True, id="in a chain", marks=pytest.mark.slow_on("swiftshader"))])
def test_tails_keep_their_digits(device: str, name: str, fused: bool) -> None:
    function, value, slope = TAILS[name]
    x = np.concatenate([np.linspace(-100, -3, 700), np.linspace(-14, -3, 700), np.linspace(-0.5, 40, 200)])
    p = ag.ag_param(x[None])
    exact = p.numpy()[0].astype(float)

    def step(one: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            y = function(p * one) * one if fused else function(p)
            loss = ag.ag_sum(y)
        return y, ag.backward(loss)[p]

    one = ag.ag_tensor(np.ones((1, x.size)))
    if fused:
        step = ag.ag_capture(step)
        step(one)
    y, g = (t.numpy()[0] for t in step(one))
    assert relative_error(y, [value(v) for v in exact]) < 3e-5  # a product of two exponentials that may be 45 ulp off
    far = exact < -3 if name != "sigmoid" else exact < 0  # where the slope goes through 0 no relative error is small
    assert relative_error(g[far], [slope(v) for v in exact[far]]) < 3e-5


def test_log_of_sigmoid(device: str) -> None:
    p = ag.ag_param([[-10.0, -15.0, -20.0, -40.0, -85.0]])
    with ag.with_grad_tape():
        y = ag.ag_log(ag.ag_sigmoid(p))
        loss = ag.ag_sum(y)
    np.testing.assert_allclose(y.numpy(), -np.log1p(np.exp(-p.numpy().astype(float))), rtol=1e-6)
    np.testing.assert_allclose(ag.backward(loss)[p].numpy(), np.ones((1, 5)), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", TAILS)
def test_tails_in_16_bits_are_rounded_once(dtype: str, name: str) -> None:
    function, value, _ = TAILS[name]
    x = ag.ag_tensor(np.linspace(-9, 9, 400)[None], dtype=dtype)
    want = np.array([[value(v) for v in x.numpy()[0].astype(float)]])
    half = 2**-11 if dtype == "f16" else 2**-8  # of the last digit, relative
    np.testing.assert_allclose(function(x).numpy().astype(float), want, rtol=1.01 * half, atol=2**-25)
