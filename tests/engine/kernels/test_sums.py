"""Long sums of one number keep their digits along every axis, in every kernel that makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.kernels.reduce import SHORT, total

Array = np.ndarray[Any, Any]
TENTH = np.float32(0.1)


@pytest.mark.parametrize(("shape", "dim"), [
    ((131_072, 2), 0), ((3, 5000, 7), 1), ((2, 20_000), 1), ((20_000, 1), 0), ((100, 3, 100), (0, 2)),
    ((SHORT + 1, 5), 0)])
def test_sums_and_means(device: str, shape: tuple[int, ...], dim: Any) -> None:
    x = ag.ag_tensor(np.full(shape, TENTH))
    count = np.prod(shape) // np.prod(x.sum(dim).shape)
    np.testing.assert_allclose(x.sum(dim).numpy(), float(TENTH) * count, rtol=3e-6)
    np.testing.assert_allclose(x.mean(dim).numpy(), TENTH, rtol=3e-6)


@pytest.mark.parametrize("n", [1, 2, 63, SHORT, SHORT + 1, 300, 4097, 70_001])
def test_every_element_is_added_once(n: int) -> None:
    for outer, inner in (((), (3,)), ((2,), (5, 2)), ((2, 2), (1,)), ((3,), ())):
        x = np.random.default_rng(n).integers(-4, 5, (*outer, n, *inner)).astype(np.float32)
        np.testing.assert_array_equal(total(x, len(outer)), x.sum(len(outer), keepdims=True))
        wide = np.repeat(x, 2, -1)[..., ::2]
        np.testing.assert_array_equal(total(wide, len(outer)), x.sum(len(outer), keepdims=True))  # not contiguous


def test_gradients_of_broadcasting(device: str) -> None:
    p = ag.ag_param([[2.0, 2.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(p * np.full((70_000, 2), TENTH))
    np.testing.assert_allclose(ag.backward(loss)[p].numpy(), np.full((1, 2), 70_000 * float(TENTH)), rtol=3e-6)


def exactly_normed(x: Array, axis: int) -> Array:
    x = x.astype(float)
    normed: Array = (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)
    return normed


@pytest.mark.parametrize(("op", "shape", "axis"), [
    (ag.ag_layer_norm_op, (20_000, 2), 0), (ag.ag_batch_norm_op, (2, 70_000), 1)])
def test_norms(device: str, op: Callable[..., ag.Tensor], shape: tuple[int, int], axis: int) -> None:
    x = (np.random.default_rng(0).random(shape) + 5).astype(np.float32)
    gamma, beta = ag.ag_param(np.ones((shape[0], 1))), ag.ag_param(np.zeros((shape[0], 1)))
    with ag.with_grad_tape():
        y = op(x, gamma, beta)
        loss = ag.ag_sum(y * TENTH)
    np.testing.assert_allclose(y.numpy(), exactly_normed(x, axis), atol=1e-5)
    np.testing.assert_allclose(ag.backward(loss)[beta].numpy(), float(TENTH) * shape[1], rtol=1e-5)


def test_rms_norm(device: str) -> None:
    x = (np.random.default_rng(0).random((20_000, 2)) + 5).astype(np.float32)
    weights = np.random.default_rng(1).random((20_000, 2)).astype(np.float32)
    operands = ag.ag_param(x), ag.ag_param(np.ones((20_000, 1)))
    with ag.with_grad_tape():
        y = ag.ag_rms_norm_op(*operands)
        loss = ag.ag_sum(y * weights)
    rate = 1 / np.sqrt((x.astype(float) ** 2).mean(0) + 1e-6)
    h = x * rate
    np.testing.assert_allclose(y.numpy(), h, rtol=2e-6)
    grads = ag.backward(loss)
    np.testing.assert_allclose(grads[operands[0]].numpy(), rate * (weights - h * (weights * h).mean(0)), atol=2e-7)
    np.testing.assert_allclose(grads[operands[1]].numpy(), (weights * h).sum(1, keepdims=True), rtol=2e-6)


def test_gradients_of_a_long_batch_norm(device: str) -> None:
    """Make the factor's gradient a sum of equal numbers: x is 1 or -1 in turn, as its cotangent is."""
    x = np.resize(np.float32([1, -1]), (1, 60_000))
    gamma = ag.ag_param([[1.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_batch_norm_op(x, gamma, [0.0]) * (x * TENTH))
    want = 60_000 * float(TENTH) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(ag.backward(loss)[gamma].numpy(), [[want]], rtol=3e-6)


def test_softmax_over_many_classes(device: str) -> None:
    classes = 50_257
    x = ag.ag_param(np.zeros((classes, 2)))
    soft = np.full((classes, 2), 1 / classes, np.float32)
    np.testing.assert_allclose(ag.ag_softmax(x + TENTH).numpy(), soft, rtol=3e-6)
    np.testing.assert_allclose(ag.ag_log_softmax(x + TENTH).numpy(), -np.log(classes), rtol=3e-6)
    for target in (soft, [3, 4]):
        loss = ag.ag_softmax_cross_entropy_loss(x + TENTH, target)
        np.testing.assert_allclose(loss.item(), np.log(classes), rtol=3e-6)
