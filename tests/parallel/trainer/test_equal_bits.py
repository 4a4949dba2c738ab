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


def halves(params: dict[str, ag.Tensor]) -> list[ag.Adam]:
    names = [*params]
    return [ag.optimizer_adam({name: params[name] for name in part}, lr=0.01) for part in (names[::2], names[1::2])]


@pytest.mark.parametrize("options", [{}, {"max_norm": 0.05}, {"optimizer": halves}], ids=["plain", "clipped", "halves"])
# Of models that one thread copies, and that several do.
@pytest.mark.parametrize("width", [6, pytest.param(700, marks=pytest.mark.slow)])
@pytest.mark.parametrize("others", [0, 1, "vulkan"])
def test_what_somebody_keeps_of_a_step_does_not_change(others: Any, width: int, options: dict[str, Any],
                                                       request: pytest.FixtureRequest) -> None:
    """Weights, gradients, states: however many steps follow; and keeping them changes nothing."""
    devices = ["cpu", *([request.getfixturevalue("lavapipe")] if others == "vulkan" else ["cpu:1"] * others)]
    kept: list[tuple[Any, Any]] = []
    made: list[Any] = []

    def model() -> ag.Layer:
        return ag.ag_sequential(ag.ag_linear(4, width, activation="tanh"), ag.ag_linear(width, width),
                                ag.ag_linear(width, 3))

    def make(params: dict[str, ag.Tensor]) -> Any:
        made[:] = [options.get("optimizer", ag.optimizer_adam)(params)]
        return made[0]

    def keep(step: ag.DPStep) -> None:
        found: list[Any] = []
        for net in step.models:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(net(ag.ag_tensor(DATA[0][0], net[0].W.device)), DATA[0][1])
            grads = ag.backward(loss)
            for p in net.parameters().values():
                found += p.numpy(), p * 1.0, grads[p]
                p.grad = None
            found += net.state_dict().values()
        for optimizer in made[0] if isinstance(made[0], list) else made:
            found += optimizer.state_dict().values()
            found += [p.numpy() for p in optimizer.params.values()]
        kept.extend((x, np.array(np.asarray(x), copy=True)) for x in found)

    settings = {**options, "make": model, "n_iter": 5, "batch": 2 * len(devices), "optimizer": make}
    result = train(devices, callback=keep, **settings)
    assert_equal(result, train(devices, **settings))
    assert kept and all(np.array_equal(np.asarray(x), then) for x, then in kept)


def test_weights_beyond_float32_spoil_no_later_step() -> None:
    """What samples count is infinite in the second step, which is left out; the others are as without it."""
    def run(devices: list[str]) -> ag.DPResult:
        done: list[ag.DPStep] = []
        return train(devices, batch=8, n_iter=4, on_nonfinite="skip", callback=done.append,
                     weight_fn=lambda _: 1e39 if len(done) == 1 else 2.0)

    one = run(["cpu"])
    assert np.isfinite(one.loss_history).tolist() == [True, False, True, True]
    two = run(["cpu", "cpu:1"])
    assert np.array_equal(one.loss_history, two.loss_history, equal_nan=True)
    for name, p in one.params.items():
        assert np.array_equal(p.numpy(), two.params[name].numpy()), name


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
