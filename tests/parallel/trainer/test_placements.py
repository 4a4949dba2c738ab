"""dp_train gives the same bits wherever its samples are computed: scenarios times placements.

Every placement is compared with one replica: losses, weights, buffers, optimizer states.  Stored hashes of such jobs,
for known machines, are in golden/parallel.py.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.dp_buffers import two
from helpers.dp_classifier import outcome, places
from helpers.ranks import dealt, outcomes

import ag

RNG = np.random.default_rng(41)
ALIKE = [((1 + RNG.standard_normal((4, 1))).astype(np.float32), RNG.integers(0, 3, 1)) for _ in range(22)]
RAGGED = [((1 + RNG.standard_normal((4, 2 + i % 3))).astype(np.float32), RNG.integers(0, 3, 2 + i % 3))
          for i in range(29)]  # columns; 29 divides by no number of replicas


def plain() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_linear(6, 3))


def dropped() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_dropout(0.25), ag.ag_linear(6, 3))


def normed() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6), ag.ag_batch_norm(6), ag.ag_dropout(0.25), ag.ag_linear(6, 3))


def momentum(params: dict[str, ag.Tensor]) -> Any:
    return ag.optimizer_sgd(params, lr=0.1, momentum=0.9)


def halved(optimizer: Any) -> Any:
    return ag.lr_scheduler_step(optimizer, 2, 0.5)


# Each scenario: the model, and other arguments of dp_train than those of `train`.
SCENARIOS: dict[str, dict[str, Any]] = {
    "eager": {"make_model": dropped, "capture": False},
    "captured and clipped": {"make_model": dropped, "capture": True, "max_norm": 0.05, "n_iter": 6},
    "ragged, momentum, schedule": {"make_model": plain, "data": RAGGED, "optimizer": momentum, "scheduler": halved},
    "running statistics": {"make_model": normed, "data": RAGGED},
    "synchronous batch norm": {"make_model": normed, "data": RAGGED, "sync_batch_norm": True, "n_iter": 2},
    "stacks": {"make_model": normed, "stack": 4, "batch": 16},
    "weights": {"make_model": plain, "data": RAGGED, "weight_fn": lambda sample: len(sample[1])},
    "two optimizers": {"make_model": normed, "data": RAGGED, "optimizer": two, "max_norm": 0.05},
    "float16, clipped": {"make_model": normed, "data": RAGGED, "dtype": "f16", "max_norm": 0.05},
    "bfloat16": {"make_model": dropped, "dtype": "bf16"},
}


class Placement(NamedTuple):
    """The replicas and ranks that compute the samples of a step."""

    replicas: int  # of each rank
    ranks: int = 1
    balance: tuple[int, ...] = ()  # shares of the replicas of a single rank; else as equal as whole stacks allow


PLACEMENTS = {
    "3 replicas": Placement(3),
    "2 replicas": Placement(2),
    "4 replicas": Placement(4),
    "8 replicas": Placement(8),
    "one without samples": Placement(3, balance=(2, 0, 2)),
    "2 ranks": Placement(1, ranks=2),
    "3 ranks": Placement(1, ranks=3),
    "2 ranks of 2": Placement(2, ranks=2),
    "4 ranks of 2": Placement(2, ranks=4),
}
QUICK = ("3 replicas", "2 ranks of 2")
WITHOUT_SAMPLES = ("eager", "synchronous batch norm", "stacks")  # scenarios where a replica without them is quick, too


def train(devices: list[str], options: dict[str, Any], **more: Any) -> ag.DPResult:
    settings = {"data": ALIKE, "batch": 12, "stack": 1, "n_iter": 4, "lr": 0.05, "seed": 6, "shuffle": False,
                "verbose": False, **options, **more}
    with ag.ag_dtype(settings.pop("dtype", "f32")):
        return ag.dp_train(loss_fn=ag.ag_softmax_cross_entropy_loss, forward_fn=lambda model, s: model(s[0]),
                           target_fn=lambda s: s[1], devices=devices, **settings)


def arrays(result: ag.DPResult) -> dict[str, np.ndarray]:
    """Return everything that must be equal."""
    return {**outcome(result), **{f"buffer {name}": x.numpy() for name, x in result.model.buffers().items()}}


@cache
def alone(device: str, scenario: str) -> dict[str, np.ndarray]:
    """Return the scenario's arrays on one replica."""
    return arrays(train([device], SCENARIOS[scenario]))


def shares(placement: Placement, stacks: int) -> list[list[float]]:
    """Return the shares of each rank's replicas; a share is whole stacks, if there are `stacks`."""
    count = placement.replicas * placement.ranks
    flat = list(placement.balance) or [stacks // count + (i < stacks % count) if stacks else 1 for i in range(count)]
    return [flat[i : i + placement.replicas] for i in range(0, count, placement.replicas)]


def stacks_of(options: dict[str, Any]) -> int:
    """Return how many stacks a step has; 0 if samples are passed one by one."""
    return options.get("batch", 0) // options.get("stack", 1)


def placed(device: str, scenario: str, placement: Placement) -> list[ag.DPResult]:
    """Return the results of all ranks."""
    options = SCENARIOS[scenario]
    of_ranks = shares(placement, stacks_of(options))
    if placement.ranks == 1:
        return [train(places(device, placement.replicas), options, balance=of_ranks[0])]
    devices = dealt(placement.ranks, placement.replicas)
    return outcomes(placement.ranks, lambda comm: train(devices[comm.rank], options, balance=of_ranks[comm.rank],
                                                        world=comm))


def cases() -> list[Any]:
    """Return all pairs but those that are refused; what is not quick is slow."""
    quick = {*((scenario, placement) for scenario in SCENARIOS for placement in QUICK),
             *((scenario, "one without samples") for scenario in WITHOUT_SAMPLES)}
    return [pytest.param(scenario, placement, marks=() if (scenario, placement) in quick else pytest.mark.slow)
            for scenario, options in SCENARIOS.items() for placement, of in PLACEMENTS.items()
            if (of.ranks == 1 or "sync_batch_norm" not in options) and all(map(any, shares(of, stacks_of(options))))]


@pytest.mark.parametrize(("scenario", "placement"), cases())
def test_any_placement_gives_the_bits_of_one_replica(scenario: str, placement: str) -> None:
    wanted = alone("cpu", scenario)
    for result in placed("cpu", scenario, PLACEMENTS[placement]):
        found = arrays(result)
        assert found.keys() == wanted.keys()
        assert [name for name in found if not np.array_equal(found[name], wanted[name])] == []
    losses = wanted["losses"]
    assert len(set(losses)) == len(losses) and np.isfinite(losses).all()


@pytest.mark.vulkan
@pytest.mark.parametrize("scenario", [name if name == "captured and clipped" else pytest.param(
    name, marks=pytest.mark.slow) for name in SCENARIOS])
def test_replicas_share_a_device(scenario: str, vulkan: str) -> None:
    (result,) = placed(vulkan, scenario, PLACEMENTS["3 replicas"])
    wanted = alone(vulkan, scenario)
    assert [name for name, x in arrays(result).items() if not np.array_equal(x, wanted[name])] == []


@pytest.mark.vulkan
@pytest.mark.parametrize("scenario", [name if name == "two optimizers" else pytest.param(
    name, marks=pytest.mark.slow) for name in SCENARIOS])
def test_unlike_devices_are_equal_after_every_step(scenario: str, lavapipe: str, swiftshader: str) -> None:
    devices, hashes = [swiftshader, "cpu", lavapipe], list[str]()

    def look(step: ag.DPStep) -> None:
        found = {sha256(b"".join(v.tobytes() for v in m.state_dict().values())).hexdigest() for m in step.models}
        assert len(found) == 1, f"replicas differ after step {step.step}"
        assert [next(iter(m.parameters().values())).device for m in step.models] == devices
        hashes.extend(found)

    options = SCENARIOS[scenario]
    balance = shares(PLACEMENTS["3 replicas"], stacks_of(options))[0]
    losses = train(devices, options, callback=look, balance=balance).loss_history
    left_out = scenario.startswith("float16")  # a step whose gradients overflow halves the loss scale, alike on all
    assert len(set(hashes)) == len(hashes) - left_out and len(hashes) == len(losses)
    np.testing.assert_allclose(losses, alone("cpu", scenario)["losses"], atol=0.02 if "dtype" in options else 1e-4)
