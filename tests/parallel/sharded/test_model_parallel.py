"""Layers on several devices: the results of one device, and placement by memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.training_losses import training_losses
from hypothesis import given, settings
from hypothesis import strategies as st

import ag
from ag.engine.device import backend_of
from ag.parallel.sharded.pipeline import measured, place

RNG = np.random.default_rng(43)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def layers() -> list[ag.Layer]:
    ag.ag_seed(8)
    return [ag.ag_linear(5, 8, activation="tanh"), ag.ag_batch_norm(8), ag.ag_dropout(0.0), ag.ag_linear(8, 3)]


@pytest.fixture(params=["cpus", pytest.param("two vendors", marks=pytest.mark.slow), "cpu and vulkan"])
def pair(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "cpus":
        return ["cpu", "cpu:1"]
    first = "cpu" if request.param == "cpu and vulkan" else request.getfixturevalue("swiftshader")
    return [first, request.getfixturevalue("lavapipe")]


def losses(model: Any, x: Any, y: Any) -> list[float]:
    return training_losses(model, ag.optimizer_adam(model, lr=0.02), x, y, steps=10)


def test_training_is_that_of_one_device(pair: list[str]) -> None:
    x, y = normal(5, 9), normal(3, 9)
    model = ag.ModelParallel(layers(), [pair[0], pair[0], pair[1], pair[1]])
    assert model(ag.ag_tensor(x, device=pair[0])).device == pair[1]
    one = losses(ag.ag_sequential(layers()), ag.ag_tensor(x, device="cpu"), y)
    many = losses(ag.ModelParallel(layers(), [pair[0], pair[0], pair[1], pair[1]]), ag.ag_tensor(x, device=pair[0]), y)
    np.testing.assert_allclose(many, one, rtol=1e-4)


def test_maps_by_name_and_by_number() -> None:
    names = dict(zip(["in", "norm", "drop", "out"], layers(), strict=True))
    assert ag.ModelParallel(names, {"in": "cpu", "out": "cpu:1"}).devices == ["cpu"] * 3 + ["cpu:1"]
    assert ag.ModelParallel(layers(), {0: "cpu:1", 1: "cpu"}).devices == ["cpu:1", "cpu", "cpu", "cpu"]
    model = ag.ag_sequential(layers())
    assert ag.ModelParallel(model, ["cpu"] * 4).parameters().keys() == model.parameters().keys()


def test_replicas_of_a_model_on_two_devices() -> None:
    """Model parallel times data parallel."""
    x, y = normal(5, 8), normal(3, 8)

    def gradients(wrap: Callable[[Any], Any]) -> list[Any]:
        stack = layers()
        model = ag.ModelParallel([stack[0], stack[3]], ["cpu", "cpu:1"])
        with ag.with_grad_tape():
            out = wrap(model)(ag.ag_tensor(x))
            loss = ag.ag_mse_loss(out, ag.ag_tensor(y, device=out.device))
        found = ag.backward(loss)
        return [found[p].numpy() for p in model.parameters().values()]

    expected = gradients(lambda m: m)
    for g, wanted in zip(gradients(lambda m: ag.DataParallel(m, [("cpu", "cpu:1"), ("cpu:2", "cpu:3")])), expected,
                         strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- placement


def test_what_layers_need_is_measured() -> None:
    stack = [ag.ag_linear(64, 128, activation="gelu"), ag.ag_linear(128, 32)]
    first, second = measured(stack, ag.ag_tensor(normal(64, 50)), 4)
    assert first.state == 4 * 4 * (64 * 128 + 128) and second.state == 4 * 4 * (128 * 32 + 32)
    assert first.activations >= 2 * 4 * 128 * 50  # what gelu was given, and what it made
    assert 4 * 32 * 50 <= second.activations < first.activations
    assert [need.activations for need in measured(stack, None, 4)] == [0, 0]


def test_a_model_that_is_too_large_for_one_device_goes_to_two(pair: list[str]) -> None:
    stack = [ag.ag_linear(64, 64, activation="relu") for _ in range(6)]
    sample = ag.ag_tensor(normal(64, 20))
    total = sum(need.total for need in measured(stack, sample, 4))
    budget = int(total / 1.5)
    model = ag.ModelParallel(stack, "auto", pair, dict.fromkeys(pair, budget), sample)
    assert model.devices == [pair[0]] * 3 + [pair[1]] * 3
    live = [backend_of(device).arena.stats().live for device in pair]
    assert all(t.device == device for layer, device in zip(model.layers, model.devices, strict=True)
               for t in layer.parameters().values()) and min(live) > 0
    assert losses(model, ag.ag_tensor(normal(64, 20), device=pair[0]), normal(64, 20))[-1] > 0


def test_what_fits_stays_on_one_device() -> None:
    assert ag.ModelParallel(layers(), devices=["cpu", "cpu:1"]).devices == ["cpu"] * 4


def test_what_does_not_fit_is_said_with_numbers() -> None:
    with pytest.raises(ag.ArenaError, match=r"need [\d,]+ bytes, the largest [\d,]+; there are 90 on cpu, 90 on cpu:1"):
        ag.ModelParallel(layers(), "auto", ["cpu", "cpu:1"], {"cpu": 90, "cpu:1": 90})


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.lists(st.integers(0, 120), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_a_placement_fits_if_there_is_one(needs: list[int], free: list[int]) -> None:
    names = [f"d{i}" for i in range(len(free))]

    def fits(start: int, device: int) -> bool:
        """Return whether layers from `start` on fit to devices from `device` on, tried one by one."""
        if device == len(free):
            return start == len(needs)
        return any(sum(needs[start:end]) <= free[device] and fits(end, device + 1)
                   for end in range(start, len(needs) + 1))

    if fits(0, 0):
        found = place(needs, free, names)
        assert found == sorted(found) and len(found) == len(needs)
        for i, room in enumerate(free):
            assert sum(n for n, d in zip(needs, found, strict=True) if d == i) <= room
    else:
        with pytest.raises(ag.ArenaError):
            place(needs, free, names)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ag.ModelParallel([]), "layers is empty"),
    (lambda: ag.ModelParallel(layers(), "cpu"), "device_map is 'cpu'"),
    (lambda: ag.ModelParallel(layers(), ["cpu"]), "1 devices for 4 layers"),
    (lambda: ag.ModelParallel(layers(), {0: "cpu", 9: "cpu"}), "names 9; the layers are 0, 1, 2, 3"),
    (lambda: ag.ModelParallel(layers(), {1: "cpu"}), "leaves out the first layer, 0"),
])
def test_bad_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
