"""Softmax and its relatives with columns of one invocation, of some, and of a whole workgroup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table.rows import EPS, Array, tensor

import ag
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of

SHAPES = [(10, 300), (100, 5), (1500, 3), (1500, 70), (20_000, 70), (50257, 2)]
LAST = [(300, 10), (5, 100), (3, 1500)]  # columns that are contiguous
OPS: dict[str, Any] = {
    "softmax": lambda x, _t, dim: ag.ag_softmax(x, dim), "log_softmax": lambda x, _t, dim: ag.ag_log_softmax(x, dim),
    "soft targets": lambda x, t, _dim: ag.ag_softmax_cross_entropy_loss(x, t),
    "class ids": lambda x, t, _dim: ag.ag_softmax_cross_entropy_loss(x, np.argmax(t.numpy(), 0)),
}


def step(device: str, op: Any, x: Array, dim: int, dtype: str = "f32") -> list[Array]:
    """The result and the gradient."""
    backend = backend_of(device)
    rng = np.random.default_rng(x.size)
    target = rng.dirichlet(np.ones(len(x)), x.shape[1]).T.astype(np.float32)
    given = tensor(x, backend, dtype, param=True)
    with ag.with_grad_tape():
        out = op(given, tensor(target, backend, dtype), dim)
        loss = ag.ag_sum(out * tensor(rng.standard_normal(out.shape).astype(np.float32), backend, dtype))
    return [out.numpy(), ag.backward(loss)[given].numpy()]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("shape", "dim"), [*((s, 0) for s in SHAPES), *((s, 1) for s in LAST)], ids=str)
def test_equals_float64(device: str, name: str, shape: tuple[int, int], dim: int) -> None:
    x = np.random.default_rng(shape).standard_normal(shape).astype(np.float32) * 4
    for got, want in zip(step(device, OPS[name], x, dim), step("cpu", OPS[name], x, dim, "f64"), strict=True):
        off = (64 + shape[dim]) * EPS["f32"]  # numpy adds up columns one by one
        np.testing.assert_allclose(got, want, rtol=off, atol=off * np.abs(want).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_infinite_and_missing_numbers(device: str, shape: tuple[int, int]) -> None:
    x = np.zeros(shape, np.float32)
    x[0] = -np.inf
    x[-1, 0] = np.nan
    x[len(x) // 2, 1] = np.inf
    found = ag.ag_softmax(tensor(x, backend_of(device))).numpy()
    want = ag.ag_softmax(tensor(x, backend_of("cpu"), "f64")).numpy()
    np.testing.assert_allclose(found[:, 2:], want[:, 2:], rtol=64 * EPS["f32"])
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_array_equal(np.isnan(found[:, 1]), np.isnan(want[:, 1]))


@pytest.mark.parametrize("target", [np.full((20, 30), 0.05, np.float32), np.arange(30) % 20])
def test_no_matrix_of_probabilities_is_stored(target: Array) -> None:
    backend = backend_of("cpu")
    x = tensor(np.zeros((20, 30), np.float32), backend, param=True)
    given = tensor(target, backend) if target.ndim == 2 else target
    with record(backend, lambda _array, _dtype, _device: None) as recording:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(x, given)
        grads = ag.backward(loss)
    assert grads[x].shape == x.shape
    recording.finished()
    large = [launch for launch in recording.launches
             if any(b.size == x.size for b in launch.buffers[: launch.primitive.outputs])]
    assert len(large) == 1 and large[0].primitive.name.startswith("softmax_cross_entropy")  # which writes the gradient


@pytest.mark.parametrize("shape", [(20, 30), (3000, 4)])
@pytest.mark.parametrize("kind", ["soft targets", "class ids"])
def test_the_gradient_takes_the_memory_of_the_logits(device: str, kind: str, shape: tuple[int, int]) -> None:
    """In a captured step, where nobody else needs the logits; the gradient's bits are those of the eager step."""
    rng = np.random.default_rng(0)
    W, x = ag.ag_param(rng.standard_normal((shape[0], 5))), rng.standard_normal((5, shape[1])).astype(np.float32)
    target = rng.dirichlet(np.ones(shape[0]), shape[1]).T.astype(np.float32)
    labels: Any = target if kind == "soft targets" else np.argmax(target, 0)

    def step(x: Array, labels: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(ag.ag_matmul(W, ag.ag_tensor(x)) * 0.5, labels)
        return ag.backward(loss)[W]

    captured, eager = ag.ag_capture(step), step(x, labels).numpy()
    captured(x, labels)
    for _ in range(2):
        np.testing.assert_array_equal(captured(x, labels).numpy(), eager)
    program: Any = captured.program
    (loss,) = (one for one in program._launches if one.primitive.name.startswith("softmax_cross_entropy"))
    _, dx, logits = loss.buffers[:3]
    assert dx.address == logits.address
