"""Norms: rows in several pieces, large means, and how few launches a layer takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table.rows import EPS, Array, tensor

import ag
from ag.engine import target
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.norm import norm_statistics, norm_sums, rms_norm_sums
from ag.engine.target import Target

NORMS = [ag.ag_batch_norm_op, ag.ag_layer_norm_op, ag.ag_rms_norm_op]


def step(device: str, x: Array, layer: Any, dtype: str = "f32") -> list[Array]:
    """The result and its gradients, with gamma and beta that are not all equal."""
    backend, features = backend_of(device), len(x)
    rng = np.random.default_rng(features)
    arrays = [x, *rng.standard_normal((2, features, 1)).astype(np.float32)][: 2 if layer is ag.ag_rms_norm_op else 3]
    weights = rng.standard_normal(x.shape).astype(np.float32)
    operands = [tensor(a, backend, dtype, param=True) for a in arrays]
    with ag.with_grad_tape():
        out = layer(*operands)
        loss = ag.ag_sum(out * tensor(weights, backend, dtype))
    grads = ag.backward(loss)
    return [out.numpy(), *(grads[t].numpy() for t in operands)]


@pytest.mark.parametrize("layer", NORMS)
def test_rows_in_pieces(device: str, layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32) + 1
    want = step("cpu", x, layer, "f64")
    monkeypatch.setattr(target, "_LONGEST_ROW", 300)
    monkeypatch.setattr(target, "_ROW_PIECE", 256)
    for got, exact in zip(step(device, x, layer), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=64 * EPS["f32"], atol=64 * EPS["f32"] * np.abs(exact).max())
    for got, exact in zip(step("cpu", x, layer, "f64"), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layer", NORMS)
def test_what_squares_overflow_of_is_nan(device: str, layer: Any) -> None:
    """Zeros in silence would train on; NaN is noticed.  The neighbours, up to the largest squares, are right."""
    sizes = np.float32([[1e20], [3e38], [1e18]]) if layer is ag.ag_batch_norm_op else np.float32([1e20, 3e38, 1e18])
    x = np.random.default_rng(0).uniform(0.5, 1, (3, 3)).astype(np.float32) * sizes
    for got, exact in zip(step(device, x, layer)[:2], step("cpu", x, layer, "f64")[:2], strict=True):
        got, exact = (got, exact) if layer is ag.ag_batch_norm_op else (got.T, exact.T)
        assert np.isnan(got[:2]).all()
        np.testing.assert_allclose(got[2], exact[2], rtol=1e-4, atol=1e-5 * np.abs(exact[2]).max())
    large = ag.ag_batch_norm_op([[1.0, 2.0]], [[1.0]], [[0.0]], mean=[[0.0]], variance=[[np.inf]])
    assert np.isnan(large.numpy()).all()


def test_running_statistics_stay_where_a_batch_overflows(device: str) -> None:
    layer = ag.nn.BatchNorm(3)
    with ag.with_grad_tape():
        layer(ag.ag_tensor(np.float32([[1, 3], [1e20, 3e20], [np.inf, 0]])))
    np.testing.assert_allclose(layer.running_mean.numpy()[:, 0], [0.2, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.numpy()[:, 0], [1.1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("layer", NORMS)
def test_rows_in_pieces_for_many_units(device: str, layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device whose units would be idle: the last piece is shorter."""
    x = np.random.default_rng(0).standard_normal((16, 13001)).astype(np.float32) + 1
    want = step("cpu", x, layer, "f64")
    backend = backend_of(device)
    monkeypatch.setattr(backend, "target", backend.target._replace(units=132))
    with ag.profile() as seen:
        found = step(device, x, layer)
    assert layer is not ag.ag_batch_norm_op or "joined_statistics" in {event.kernel for event in seen.events}
    for got, exact in zip(found, want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=64 * EPS["f32"], atol=64 * EPS["f32"] * np.abs(exact).max())


@pytest.mark.parametrize(("length", "rows", "units", "piece"), [
    (1 << 16, 3, 1, 1 << 16), (1 << 17, 3, 1, 1 << 14), (1 << 15, 16, 132, 4096), (1 << 15, 132, 132, 1 << 15),
    (1 << 17, 3, 132, 4096), (4097, 1, 132, 4097), (8192, 32, 132, 4096), (0, 3, 132, 1), (5, 0, 132, 5),
])
def test_the_length_of_pieces(length: int, rows: int, units: int, piece: int) -> None:
    assert Target(units=units).split_row(length, rows) == piece


@pytest.mark.parametrize("layer", NORMS)
def test_one_feature_or_one_sample(device: str, layer: Any) -> None:
    for shape in ((1, 300), (300, 1)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        for got, exact in zip(step(device, x, layer), step("cpu", x, layer, "f64"), strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-3 * np.abs(exact).max() + 1e-4)


def test_variances_of_rows_with_a_large_mean(vulkan: str) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((5, 7000)) + np.float32([[0], [1e3], [-1e4], [1e5], [1e4]])).astype(np.float32)
    x[4, 0] = -1e4  # the element that is taken off
    found = backend_of(vulkan).launch(norm_statistics, tensor(x, backend_of(vulkan)).buffer, chunk=7000)
    mean, variance = (backend_of(vulkan).download(v)[:, 0] for v in found)
    np.testing.assert_allclose(mean, x.astype(float).mean(1), rtol=2 * EPS["f32"], atol=EPS["f32"] * 4)
    np.testing.assert_allclose(variance, x.astype(float).var(1), rtol=32 * EPS["f32"])


def test_a_large_mean_costs_no_digits(device: str) -> None:
    x = np.random.default_rng(2).integers(0, 8, (64, 40)).astype(np.float32)
    for layer in (ag.ag_batch_norm_op, ag.ag_layer_norm_op):
        near = step(device, x, layer)[0]
        np.testing.assert_allclose(step(device, x + 2.0**16, layer)[0], near, atol=0.02)


@pytest.mark.parametrize(("layer", "names"), [
    (ag.ag_layer_norm_op, ["layer_norm", "layer_norm_grad", "norm_sums"]),
    (ag.ag_rms_norm_op, ["rms_norm", "rms_norm_grad", "rms_norm_sums"]),
    (ag.ag_batch_norm_op, ["norm_statistics", "normalize", "norm_sums", "batch_norm_grad"]),
])
def test_launches(layer: Any, names: list[str]) -> None:
    backend = backend_of("cpu")
    shapes = ((4, 7), (4, 1), (4, 1))[: 2 if layer is ag.ag_rms_norm_op else 3]
    operands = [tensor(np.ones(s), backend, param=True) for s in shapes]
    with record(backend) as recording:
        with ag.with_grad_tape():
            loss = ag.ag_sum(layer(*operands))
        ag.backward(loss)
    assert [x.primitive.name for x in recording.launches if "norm" in x.primitive.name] == names


def in_order(x: Array) -> Array:
    """The sum of each row as a workgroup makes it: of every 128th element, then of every eighth invocation."""
    lanes = np.zeros((len(x), 128), np.float32)
    for i in range(0, x.shape[1], 128):
        part = x[:, i : i + 128]
        lanes[:, : part.shape[1]] += part
    some, total = np.zeros((len(x), 8), np.float32), np.zeros(len(x), np.float32)
    for i in range(0, 128, 8):
        some += lanes[:, i : i + 8]
    for i in range(8):
        total += some[:, i]
    return total


@pytest.mark.parametrize("length", [1, 127, 128, 129, 1023, 1025, 2047, 2048, 2049, 5000])
def test_rows_are_added_up_in_one_order_however_many_loads_are_under_way(vulkan: str, length: int) -> None:
    backend, rng = backend_of(vulkan), np.random.default_rng(length)
    x, g = (rng.standard_normal((2, 3, length)) * 10.0 ** rng.integers(-3, 4, (2, 3, length))).astype(np.float32)
    a, b = tensor(x, backend).buffer, tensor(g, backend).buffer
    mean, variance = (backend.download(v)[:, 0] for v in backend.launch(norm_statistics, a, chunk=length))
    np.testing.assert_allclose(mean, x.astype(float).mean(1), atol=2 * EPS["f32"] * np.abs(x).mean(1).max())
    np.testing.assert_allclose(variance, x.astype(float).var(1), rtol=64 * EPS["f32"])
    for shape in ((3, 1), (1, length)):  # statistics of rows, and of columns
        centre, spread = rng.standard_normal(shape).astype(np.float32), rng.random(shape).astype(np.float32) + 0.1
        given = tensor(centre, backend).buffer, tensor(spread, backend).buffer
        dgamma, dbeta = (backend.download(v)[:, 0] for v in backend.launch(
            norm_sums, a, b, *given, eps=1e-5, chunk=length))
        assert dbeta.tobytes() == in_order(g).tobytes()
        terms = g.astype(float) * (x - centre.astype(float)) / np.sqrt(spread.astype(float) + 1e-5)
        np.testing.assert_allclose(dgamma, terms.sum(1), atol=64 * EPS["f32"] * np.abs(terms).sum(1).max())
    spread = rng.random((1, length)).astype(np.float32) + 0.1
    dgamma = backend.download(backend.launch(rms_norm_sums, a, b, tensor(spread, backend).buffer, eps=1e-6,
                                             chunk=length))[:, 0]
    terms = g.astype(float) * x / np.sqrt(spread.astype(float) + 1e-6)
    np.testing.assert_allclose(dgamma, terms.sum(1), atol=64 * EPS["f32"] * np.abs(terms).sum(1).max())


# ---------------------------------------------------------------------------------------------- RMS norm


def test_rms_norm_of_huge_and_tiny_numbers(device: str) -> None:
    """Right as long as the sum of squares is float32; NaN beyond.  Beside eps, tiny ones do not count."""
    x = np.random.default_rng(0).uniform(1, 2, (9, 4)).astype(np.float32) * np.float32([1e-30, 1e-4, 1e4, 1e18])
    gamma = np.ones((9, 1), np.float32)
    want = x / np.sqrt((x.astype(float) ** 2).mean(0) + 1e-6)
    np.testing.assert_allclose(ag.ag_rms_norm_op(x, gamma).numpy(), want, rtol=1e-6)
    for got, exact in zip(step(device, x, ag.ag_rms_norm_op), step("cpu", x, ag.ag_rms_norm_op, "f64"), strict=True):
        assert (np.abs(got - exact) <= 2e-6 * np.abs(exact).max(0)).all()


def test_rms_norm_of_zeros(device: str) -> None:
    out, dx, dgamma = step(device, np.zeros((5, 3), np.float32), ag.ag_rms_norm_op)
    assert not out.any() and not dgamma.any()
    exact = step("cpu", np.zeros((5, 3), np.float32), ag.ag_rms_norm_op, "f64")[1]
    np.testing.assert_allclose(dx, exact, rtol=1e-6)  # 1000 times what came, as the rate of nothing is


def test_rms_norm_of_what_is_not_finite(device: str) -> None:
    """A sample that has NaN is NaN; one that has infinity, too; its neighbours know nothing of it."""
    x = np.ones((20, 5), np.float32)
    x[3, 1], x[17, 3] = np.nan, -np.inf
    out = ag.ag_rms_norm_op(x, np.ones((20, 1))).numpy()
    assert np.isnan(out[:, 1]).all() and np.isnan(out[:, 3]).all()
    np.testing.assert_allclose(out[:, [0, 2, 4]], 1, rtol=1e-6)
    _, dx, dgamma = step(device, x, ag.ag_rms_norm_op)
    assert np.isnan(dx[:, 1]).all() and np.isfinite(dx[:, [0, 2, 4]]).all() and np.isnan(dgamma).any()
