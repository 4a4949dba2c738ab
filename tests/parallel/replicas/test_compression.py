"""Compressed gradients: what a message has, that nothing is lost, and that training gets where it would without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import ag
from ag.parallel.replicas.compression import WIRES, Link, message_bytes, pack, ratio_at, unpack

RNG = np.random.default_rng(11)
DIGITS: Any = run_path(str(Path(__file__).parents[3] / "examples" / "digits_cnn.py"))["load_digits"]()


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.7, 1.0])
def test_a_message_has_the_largest_elements_and_the_bytes_computed(wire: str, ratio: float) -> None:
    for size in (1, 2, 7, 1000):
        g = normal(size)
        message = pack(g, ratio, WIRES[wire])
        assert message.nbytes == message_bytes(size, ratio, WIRES[wire]) <= g.nbytes
        arrived = unpack(message, size, WIRES[wire])
        sent = arrived != 0
        assert sent.sum() >= max(1, round(ratio * size))
        assert sent.all() or np.abs(g[sent]).min() >= np.abs(g[~sent]).max()
        np.testing.assert_allclose(arrived[sent], g[sent], rtol={"f32": 0, "f16": 2**-11, "bf16": 2**-8}[wire])


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_left_out_comes_later(wire: str) -> None:
    link, arrived, given = Link(WIRES[wire]), np.zeros((5, 8)), np.zeros((5, 8))
    for _ in range(30):
        g = normal(5, 8)
        given, arrived = given + g, arrived + link.carry("W", g, 0.1)
        np.testing.assert_allclose(arrived + link.residuals["W"], given, atol=1e-4)
    for _ in range(20):
        arrived = arrived + link.carry("W", np.zeros((5, 8), np.float32), 0.1)
    np.testing.assert_allclose(arrived, given, atol=1e-4 if wire == "f32" else 0.02)


@pytest.mark.parametrize("wire", WIRES)
def test_momentum_moves_as_far_as_it_does_without_compression(wire: str) -> None:
    """A gradient's impulse is g + m g + m^2 g + ..., and none of it gets lost, whatever the ratio is meanwhile."""
    link, arrived, impulse = Link(WIRES[wire], momentum=0.75), np.zeros((5, 8)), np.zeros((5, 8))
    for k in range(30):
        g = normal(5, 8)
        impulse, arrived = impulse + 4 * g, arrived + link.carry("W", g, 0.1 if k % 3 else 1.0)
        np.testing.assert_allclose(arrived + link.residuals["W"], impulse, atol=1e-4)
    for _ in range(20):
        arrived = arrived + link.carry("W", np.zeros((5, 8), np.float32), 0.1)
    np.testing.assert_allclose(arrived, impulse, atol=1e-4 if wire == "f32" else 0.05)


def test_whole_messages_move_as_momentum_does() -> None:
    link, velocity = Link(WIRES["f32"], momentum=0.9), np.zeros(8)
    for _ in range(10):
        g = normal(8)
        velocity = 0.9 * velocity + g
        np.testing.assert_allclose(link.carry("b", g, 1.0), velocity, rtol=1e-4, atol=1e-5)


def test_the_warm_up_is_exponential() -> None:
    ratios = np.array([ratio_at(k, 0.01, 8) for k in range(9)])
    np.testing.assert_allclose(ratios[1:] / ratios[:-1], (0.01 / 0.25) ** (1 / 8))
    assert ratios[0] == 0.25 and ratios[8] == ratio_at(100, 0.01, 8) == ratio_at(0, 0.01, 0) == 0.01
    assert {ratio_at(k, 0.5, 8) for k in range(9)} == {0.5}  # which is more than a warm-up begins with


def test_values_too_large_for_f16_come_in_parts() -> None:
    link, g = Link(WIRES["f16"]), np.float32([1e5, 1.0])
    assert link.carry("b", g, 1.0).tolist() == [65504.0, 1.0]
    assert link.carry("b", np.zeros(2, np.float32), 1.0).tolist() == [1e5 - 65504.0, 0.0]


def test_a_gradient_that_is_not_finite_is_seen_and_leaves_no_trace() -> None:
    link = Link(WIRES["bf16"])
    link.carry("b", normal(8), 0.5)
    residual = link.residuals["b"].copy()
    bad = np.float32([1, 2, 3, np.nan, 5, 6, 7, np.inf])
    np.testing.assert_array_equal(link.carry("b", bad, 0.5), bad)
    np.testing.assert_array_equal(link.residuals["b"], residual)


# ---------------------------------------------------------------------------------------------- training


def network() -> ag.Layer:
    ag.ag_seed(1)
    return ag.ag_sequential(ag.ag_linear(64, 64, activation="relu"), ag.ag_linear(64, 10))


def train(model: Any, optimizer: Any, steps: range) -> float:
    """The loss over all images after some steps on digits; step k always has the same ones."""
    images, digits = DIGITS
    x = images.reshape(64, -1).astype(np.float32)
    device = next(iter(model.parameters().values())).device
    for k in steps:
        picked = np.random.default_rng(k).integers(0, x.shape[1], 64)
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x[:, picked], device)), digits[picked])
        optimizer.step(ag.backward(loss))
    return float(ag.ag_softmax_cross_entropy_loss(model.module(ag.ag_tensor(x, device)), digits).item())


def values(model: Any) -> list[Any]:
    return [p.numpy() for p in model.parameters().values()]


def test_ratio_1_is_exact() -> None:  # of two replicas: a sum of more could be made in another order
    plain = ag.DataParallel(network(), ["cpu", "cpu:1"])
    whole = ag.CompressedDataParallel(network(), ["cpu", "cpu:1"], compression_ratio=1)
    assert train(plain, ag.optimizer_adam(plain), range(10)) == train(whole, ag.optimizer_adam(whole), range(10))
    for a, b in zip(values(plain), values(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_in_the_middle_of_the_warm_up_resumes_bit_identically(tmp_path: Path) -> None:
    def make() -> tuple[Any, Any]:
        model = ag.CompressedDataParallel(network(), ["cpu", "cpu:1"], 0.05, momentum=0.9, warmup_steps=9)
        return model, ag.optimizer_sgd(model, lr=0.02)

    straight, optimizer = make()
    train(straight, optimizer, range(6))
    ag.ag_save_checkpoint(tmp_path / "run.safetensors", straight, optimizer)
    sent, expected = straight.bytes_sent, train(straight, optimizer, range(6, 12))
    resumed, optimizer = make()
    ag.ag_load_checkpoint(tmp_path / "run.safetensors", resumed, optimizer)
    assert train(resumed, optimizer, range(6, 12)) == expected
    assert resumed.bytes_sent == straight.bytes_sent - sent
    for a, b in zip(values(straight), values(resumed), strict=True):
        np.testing.assert_array_equal(a, b)
    plain = ag.DataParallel(network(), ["cpu"])
    ag.ag_save_checkpoint(tmp_path / "plain.safetensors", plain)
    with pytest.raises(ag.CheckpointError, match="compressor: the file holds no state of it"):
        ag.ag_load_checkpoint(tmp_path / "plain.safetensors", resumed)


@pytest.mark.slow
@pytest.mark.vulkan
def test_two_vendors(lavapipe: str, swiftshader: str) -> None:
    def found(*devices: str) -> list[Any]:
        with ag.ag_device(devices[0]):
            model = ag.CompressedDataParallel(network(), devices, 0.5, "bf16", momentum=0.9)
            train(model, ag.optimizer_sgd(model, lr=0.01), range(3))
            return values(model)

    for a, b in zip(found(lavapipe, swiftshader), found("cpu", "cpu"), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)


def test_compressor_state_must_fit() -> None:
    model = ag.CompressedDataParallel(network(), ["cpu"], 0.1)
    train(model, ag.optimizer_sgd(model), range(1))
    before = model.compressor_state()
    with pytest.raises(ag.CheckpointError, match=r"missing steps, unexpected residual1.x, residual0.layer1_b is"):
        model.load_compressor_state({"residual1.x": normal(1), "residual0.layer1_b": normal(2)})
    assert model.compressor_state().keys() == before.keys()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="compression_ratio is 0; it must be in"):
        ag.CompressedDataParallel(network(), ["cpu"], 0)
    with pytest.raises(ValueError, match="wire is 'int8'; use one of f32, f16, bf16"):
        ag.CompressedDataParallel(network(), ["cpu"], wire="int8")
    with pytest.raises(ValueError, match="momentum is 1; it must be in"):
        ag.CompressedDataParallel(network(), ["cpu"], momentum=1)
    with pytest.raises(ValueError, match="warmup_steps is -1; a whole number of at least 0"):
        ag.CompressedDataParallel(network(), ["cpu"], warmup_steps=-1)


# ---------------------------------------------------------------------------------------------- mixed precision


@pytest.mark.parametrize("wrap", [ag.DataParallel, ag.CompressedDataParallel])
def test_f16_replicas_skip_a_step_together(f16: None, wrap: Callable[..., Any]) -> None:
    model = wrap(ag.ag_linear(3, 2), ["cpu", "cpu:1"])
    optimizer = ag.optimizer_adam(model, lr=0.1)

    def step(x: Any) -> None:
        with ag.with_grad_tape():
            loss = ag.ag_mean(model(ag.ag_tensor(x)))
        optimizer.step(ag.backward(loss))

    x = np.ones((3, 4), np.float32)
    step(x)
    before, scale = values(model), optimizer.loss_scale
    x[0, 3] = np.inf  # a sample of the second replica
    step(x)
    assert (optimizer.skipped, optimizer.loss_scale, optimizer.t) == (1, scale / 2, 1)
    for a, b in zip(values(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    step(np.ones((3, 4), np.float32))
    assert optimizer.t == 2 and all(np.isfinite(v).all() for v in values(model))
