"""clip_grad_norm: the norm it returns, gradients scaled in place, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.parameters import GRADS, gradients, parameters

import ag


def test_clip_grad_norm(device: str) -> None:
    params = parameters()
    grads = gradients(0, params)
    norm = float(np.sqrt(sum((g**2).sum() for g in GRADS[0].values())))
    assert ag.clip_grad_norm(params, grads, 1e9) == pytest.approx(norm, rel=1e-6)
    assert all(np.array_equal(g.numpy(), GRADS[0][n].astype(np.float32)) for n, g in grads.items())
    held = {name: g.buffer for name, g in grads.items()}
    assert ag.clip_grad_norm(params, grads, 2.0) == pytest.approx(norm, rel=1e-6)
    for name, g in grads.items():
        assert g.buffer is held[name]  # in place
        assert np.allclose(g.numpy(), GRADS[0][name] * 2.0 / norm, rtol=1e-5, atol=1e-7)
    assert ag.clip_grad_norm(params, grads, float("inf")) == pytest.approx(2.0, rel=1e-5)


def test_clip_grad_norm_of_what_backward_left(device: str) -> None:
    W = ag.ag_param([[3.0, 4.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(W * [[3.0, 4.0]])
    grads = ag.backward(loss)
    assert ag.clip_grad_norm({"W": W}, None, 1.0) == 5.0
    assert np.allclose(W.grad.numpy(), [[0.6, 0.8]])
    assert ag.clip_grad_norm([ag.ag_param([[1.0]])], grads, 1.0) == 0.0  # no gradient, no norm


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_clip_grad_norm_refuses_what_is_not_finite(device: str, bad: float) -> None:
    params = parameters()
    grads = gradients(0, params)
    grads["b"].data = np.array([[1.0], [bad], [2.0], [0.0], [1.0]])
    before = {name: g.numpy() for name, g in grads.items()}
    with expect_error("clip_grad_norm of a gradient that is not finite", FloatingPointError, "gradient of b",
                      "unchanged"):
        ag.clip_grad_norm(params, grads, 1.0)
    for name, g in grads.items():
        assert np.array_equal(g.numpy(), before[name], equal_nan=True)


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [np.inf, np.nan]])
def test_the_norm_of_f16_gradients_that_are_not_finite(device: str, bad: list[float]) -> None:
    V, W = (ag.ag_param([[1.0]], dtype="f16") for _ in "VW")
    V.grad, W.grad = (ag.ag_tensor([[g]]) for g in bad)
    assert np.array_equal(ag.clip_grad_norm([V, W], None, 1.0), np.linalg.norm(bad), equal_nan=True)


@pytest.mark.parametrize(("size", "max_norm"), [(1e-25, 5e-26), (1e-25, 1.0), (1e25, 1.0), (1e30, 1e-12)])
def test_clip_grad_norm_at_both_ends(device: str, size: float, max_norm: float) -> None:
    W, g = ag.ag_param([[0.0, 0.0]]), ag.ag_tensor([[3 * size, 4 * size]])
    assert ag.clip_grad_norm([W], {"param1": g}, max_norm) == pytest.approx(5 * size, rel=1e-5)
    share = min(max_norm / (5 * size), 1)
    np.testing.assert_allclose(g.numpy().astype(float) / size, np.float64([[3, 4]]) * share, rtol=1e-5)


def test_clip_grad_norm_of_mixed_types_and_wide_arrays() -> None:
    params = {"a": ag.ag_param([[0.0, 0.0]]), "b": ag.ag_param([[0.0, 0.0]], dtype="f64")}
    for names in (["a", "b"], ["b", "a"]):
        small, large = ag.ag_tensor([[3.0, 4.0]]), ag.ag_tensor([[3e200, 4e200]], dtype="f64")
        norm = ag.clip_grad_norm({name: params[name] for name in names}, {"a": small, "b": large}, 1.0)
        assert norm == pytest.approx(5e200) and np.allclose(large.numpy(), [[0.6, 0.8]]) and not small.numpy().any()
    for size in (1e200, 1e-200):
        array = np.array([[3.0, 4.0]]) * size
        assert ag.clip_grad_norm({"a": params["a"]}, {"a": array}, size) == pytest.approx(5 * size, rel=1e-12)
        np.testing.assert_allclose(array, np.array([[0.6, 0.8]]) * size, rtol=1e-12)


def test_a_captured_clip_at_both_ends(device: str) -> None:
    W = ag.ag_param([[0.0, 0.0]])

    def step(x: ag.Tensor, max_norm: float) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            loss = ag.ag_sum(W * x)
        grads = ag.backward(loss)
        norm = ag.clip_grad_norm([W], {"param1": grads[W]}, max_norm)
        W.grad = None
        assert isinstance(norm, ag.Tensor)
        return norm, grads[W]

    large = ag.ag_capture(lambda x: step(x, 1.0))
    for _ in range(3):
        norm, g = large(ag.ag_tensor([[3e25, 4e25]]))
        assert norm.item() == pytest.approx(5e25, rel=1e-5) and np.allclose(g.numpy(), [[0.6, 0.8]])
    with expect_error("a bound whose square vanishes", ValueError, "max_norm is 5e-26", "at least 6.3e-16"):
        ag.ag_capture(lambda x: step(x, 5e-26))(ag.ag_tensor([[3e-25, 4e-25]]))


@pytest.mark.parametrize("max_norm", [0.5, 1e9, float("inf")])
def test_clip_grad_norm_in_a_captured_step(device: str, max_norm: float) -> None:
    ends = []
    for wrap in (lambda step: step, ag.ag_capture):
        ag.ag_seed(2)
        model = ag.ag_sequential(ag.ag_linear(4, 6, "tanh"), ag.ag_linear(6, 2))
        optimizer = ag.optimizer_sgd(model, lr=0.1)
        norms = []

        def step(x: ag.Tensor) -> ag.Tensor | None:
            with ag.with_grad_tape():
                loss = ag.ag_sum(model(x) ** 2)  # noqa: B023 - used in this turn of the loop
            grads = ag.backward(loss)
            norm = ag.clip_grad_norm(model, grads, max_norm)  # noqa: B023
            optimizer.step(grads)  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            if isinstance(norm, ag.Tensor):
                return norm
            norms.append(norm)  # noqa: B023
            return None

        run, rng = wrap(step), np.random.default_rng(0)
        found = [run(ag.ag_tensor(rng.normal(size=(4, 3)))) for _ in range(4)]
        last = norms[-1] if found[-1] is None else found[-1].item()
        ends.append((last, {name: p.numpy().tobytes() for name, p in model.parameters().items()}))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-6)
    assert ends[0][1] == ends[1][1]


def test_a_captured_clip_leaves_what_is_not_finite(device: str) -> None:
    W = ag.ag_param([[3.0, 4.0]])

    def step(x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            loss = ag.ag_sum(W * x)
        grads = ag.backward(loss)
        norm = ag.clip_grad_norm([W], {"param1": grads[W]}, 1.0)
        W.grad = None
        assert isinstance(norm, ag.Tensor)
        return norm, grads[W]

    captured = ag.ag_capture(step)
    norm, g = captured(ag.ag_tensor([[3.0, 4.0]]))
    assert norm.item() == 5.0 and np.allclose(g.numpy(), [[0.6, 0.8]])
    norm, g = captured(ag.ag_tensor([[np.inf, 4.0]]))
    assert norm.item() == np.inf and g.numpy().tolist() == [[np.inf, 4.0]]


@pytest.mark.parametrize("make", [ag.optimizer_adamw, lambda p, lr: ag.optimizer_sgd(p, lr=lr, momentum=0.9)])
def test_a_captured_clip_through_overflows(device: str, f16: None, make: Callable[..., Any]) -> None:
    ends = []
    for wrap in (lambda step: step, ag.ag_capture):
        W, V = ag.ag_param(np.linspace(-1, 1, 9).reshape(1, 9)), ag.ag_param([[1.0]], dtype="f32")
        optimizer = make({"W": W, "V": V}, lr=1e-2)

        def step(x: ag.Tensor) -> None:
            with ag.with_grad_tape():
                loss = ag.ag_sum(ag.ag_cast(W * x, "f32") * V) * 0.0625  # noqa: B023 - used in this turn of the loop
            ag.backward(loss)
            ag.clip_grad_norm([W, V], None, 1.0)  # noqa: B023
            optimizer.step()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023

        run = wrap(step)
        for i in range(12):
            scale = (0.3, 30.0, 1e5)[i % 3]  # not clipped, clipped, skipped
            run(ag.ag_tensor(np.random.default_rng(i).normal(size=(1, 9)) * scale))
        assert 1 <= optimizer.skipped < 12
        ends.append([W.numpy(), V.numpy(), *optimizer.state_dict().values()])
    for a, b in zip(*ends, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_captured_clip_of_some_parameters(device: str) -> None:
    ends = []
    for wrap in (lambda step: step, ag.ag_capture):
        params = {name: ag.ag_param(np.full((1, n), n / 4)) for name, n in zip("abcde", (3, 9, 2, 5, 1), strict=True)}
        optimizer = ag.optimizer_adamw(params, lr=0.1)

        def step(x: ag.Tensor) -> None:
            with ag.with_grad_tape():
                loss = ag.ag_sum(ag.ag_concat([params[name] * x for name in "abde"], 1) ** 3)  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            grads = ag.backward(loss)
            ag.clip_grad_norm({name: params[name] for name in "ab"}, grads, 0.5)  # noqa: B023
            optimizer.step(grads)  # noqa: B023

        run = wrap(step)
        for scale in (0.01, 1.0, 3.0):
            run(ag.ag_tensor([[scale]]))
        left = [*params.values(), *(p.grad for p in params.values() if p.grad is not None)]
        assert len(left) == 9
        ends.append([*(t.numpy() for t in left), *optimizer.state_dict().values()])
    for a, b in zip(*ends, strict=True):
        assert a.tobytes() == b.tobytes()
