"""Captured steps in 16 bits have the bits of eager ones: random programs, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag
from ag import ops
from ag.engine.backends.cpu.backend import NumpyBackend

UNARY: list[Callable[..., Any]] = [
    ag.ag_relu, ag.ag_tanh, ag.ag_sigmoid, ops.gelu, ops.silu, ag.ag_exp, lambda x: x * 0.5, lambda x: -x,
    lambda x: x[2:6], lambda x: x[:, 1:], lambda x: x.reshape(x.shape[::-1]).T, lambda x: ag.ag_softmax(x)]
BINARY: list[Callable[..., Any]] = [
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a / (b * b + 1.0)]


def program(seed: int) -> Callable[..., Any]:
    """A random function of a matrix and two weights."""
    def compute(x: Any, w: Any, bias: Any) -> Any:
        rng = np.random.default_rng(seed)
        made = [x, ag.ag_matmul(w, x) + bias]
        for _ in range(rng.integers(3, 10)):
            a, b = (made[i] for i in rng.integers(len(made), size=2))
            if a.shape == b.shape and rng.random() < 0.5:
                made.append(BINARY[rng.integers(len(BINARY))](a, b))
            elif a.shape[0] == w.shape[1] and rng.random() < 0.4:
                made.append(ag.ag_tanh(ag.ag_matmul(w, a) + bias))
            elif a.shape[0] == w.shape[1] and rng.random() < 0.3:
                made.append(ops.layer_norm(a, bias, bias))
            else:
                made.append(UNARY[rng.integers(len(UNARY))](a))
        return sum((ag.ag_mean(y * y) for y in made[1:]), ag.ag_mean(made[0]))
    return compute


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("seed", range(6))
def test_captured_equals_eager(device: str, dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(fuse_from=1, epilogues=False))
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=s) for s in ((8, 15), (8, 8), (8, 1))]
    compute = program(seed)

    def outcome(captured: bool) -> list[Any]:
        with ag.ag_device(device), ag.ag_dtype(dtype):
            x, w, bias = ag.ag_tensor(arrays[0]), *map(ag.ag_param, arrays[1:])
            optimizer = ag.optimizer_adam({"w": w, "bias": bias}, lr=0.01)

            def step(x: Any) -> Any:
                with ag.with_grad_tape():
                    loss = compute(x, w, bias)
                optimizer.step(ag.backward(loss))
                optimizer.zero_grad()
                return loss

            run = ag.ag_capture(step) if captured else step
            losses = [run(x).item() for _ in range(3)]
            return [*losses, w.numpy(), bias.numpy()]

    for eager, replayed in zip(outcome(False), outcome(True), strict=True):
        np.testing.assert_array_equal(eager, replayed)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("compute", [lambda x: x * 2.0, lambda x: x[1:2]], ids=["made", "moved"])
def test_small_results_keep_their_type(device: str, dtype: str, compute: Callable[[ag.Tensor], ag.Tensor]) -> None:
    """They are copied, that of every call into memory of its own."""
    x = ag.ag_tensor(np.arange(12.0).reshape(3, 4), device, dtype)
    step = ag.ag_capture(lambda: compute(x))
    first, second = step(), step()
    for result in (first, second, compute(x)):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.numpy(), compute(x).numpy())
