"""dp_train over many steps: 1 = 2 = 3 = 4 = 8 replicas to the bit, and two vendors in step with one device."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal, make_model, places

import ag

RNG = np.random.default_rng(41)
# Ragged: samples are columns of 1 to 3 vectors, and their number fits no number of replicas.
SIZES = [1 + i % 3 for i in range(29)]
DATA = [((1 + RNG.standard_normal((4, n))).astype(np.float32), RNG.integers(0, 3, n)) for n in SIZES]
BATCH = 24


def plain() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_linear(6, 3))


def normed() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6), ag.ag_batch_norm(6), ag.ag_dropout(0.25), ag.ag_linear(6, 3))


def train(devices: list[str], make: Any = plain, batch: int = BATCH, **options: Any) -> ag.DPResult:
    settings = {"micro_batch": batch // len(devices), "n_iter": 100, "lr": 0.01, "seed": 6, "verbose": False,
                "shuffle": False}
    return ag.dp_train(make, DATA, ag.ag_softmax_cross_entropy_loss, lambda model, s: model(s[0]), lambda s: s[1],
                       devices=devices, **{**settings, **options})


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"max_norm": 0.05},
    "dropout": {"make": make_model},
    "clipped with dropout": {"make": make_model, "max_norm": 0.05},
}


@pytest.mark.parametrize("steps", [30, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_any_number_of_replicas_gives_the_same_bits(options: dict[str, Any], steps: int) -> None:
    options = {**options, "n_iter": steps}
    one = train(places("cpu", 1), **options)
    for n in (2, 3, 4, 8):
        assert_equal(train(places("cpu", n), **options), one)
    assert one.loss_history[-10:].mean() < one.loss_history[:10].mean()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_accumulation_too(options: dict[str, Any]) -> None:
    options = {**options, "n_iter": 30}
    one = train(places("cpu", 1), **options)
    for n in (2, 4):
        assert_equal(train(places("cpu", n), micro_batch=BATCH // n // 3, accumulate=3, **options), one)


@pytest.mark.parametrize("steps", [12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, pytest.param({"max_norm": 0.05}, marks=pytest.mark.slow)],
                         ids=["free", "clipped"])
def test_with_synchronous_batch_norm_too(options: dict[str, Any], steps: int) -> None:
    """With dropout; one of the jobs accumulates, and in one a replica has no samples."""
    options = {**options, "n_iter": steps}
    one = train(places("cpu", 1), normed, 8, sync_batch_norm=True, **options)
    for n, more in ((2, {"micro_batch": 2, "accumulate": 2}), (4, {"balance": [3, 1, 0, 4]}), (8, {})):
        assert_equal(train(places("cpu", n), normed, 8, sync_batch_norm=True, **options, **more), one)
    nine = train(places("cpu", 1), normed, 9, sync_batch_norm=True, **options)
    assert_equal(train(places("cpu", 3), normed, 9, sync_batch_norm=True, **options), nine)


@pytest.mark.vulkan
@pytest.mark.parametrize("steps", [50, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mix", [["lavapipe", "swiftshader"], ["cpu", "lavapipe"]], ids="+".join)
def test_two_kinds_of_device_are_equal_by_hash_after_every_step(mix: list[str], steps: int, lavapipe: str,
                                                                swiftshader: str) -> None:
    devices = [{"lavapipe": lavapipe, "swiftshader": swiftshader, "cpu": "cpu"}[name] for name in mix]
    hashes: list[set[str]] = []

    def look(step: ag.DPStep) -> None:
        hashes.append({sha256(b"".join(v.tobytes() for v in m.state_dict().values())).hexdigest()
                       for m in step.models})

    options: dict[str, Any] = {"n_iter": steps, "batch": 8, "lr": 0.002}
    result = train(devices, callback=look, **options)
    assert [len(found) for found in hashes] == [1] * steps and len(set.union(*hashes)) == steps
    for device in devices:
        assert np.abs(result.loss_history - train([device], **options).loss_history).max() < 1e-4
