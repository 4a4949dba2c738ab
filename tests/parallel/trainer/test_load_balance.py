"""dp_train with `balance="auto"`: shares follow the speed of the devices, and training is the same to the bit."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal, places, train
from helpers.dp_linear import DATA
from helpers.dp_linear import train as train_linear

import ag
from ag.parallel.trainer.replica import Replica
from ag.parallel.trainer.replicas import AutoBalance, Balance


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds per sample that devices take longer."""
    cost: dict[str, float] = {}
    run = Replica.run

    def slowly(self: Replica, shard: Any, first: int, draws: int | None) -> None:
        run(self, shard, first, draws)
        time.sleep(cost.get(self.device, 0.0) * len(shard))

    monkeypatch.setattr(Replica, "run", slowly)
    return cost


def test_a_slower_device_gets_fewer_samples_within_20_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 90 % of the throughput that both devices have together, with one four times slower.

    The clock of the test gives the times, so that they are the same on a busy machine.
    """
    cost = {"cpu": 0.001, "cpu:1": 0.004}
    shards: list[list[int]] = []
    finish, note = Replica.start_and_finish, AutoBalance.note

    def timed(self: Replica) -> None:
        shard, _, _ = self.given
        finish(self)
        self.ended = self.began + cost[self.device] * len(shard) * float(noise.uniform(0.95, 1.05))

    def noted(self: AutoBalance, samples: list[int], seconds: list[float]) -> None:
        shards.append(samples)
        note(self, samples, seconds)

    noise = np.random.default_rng(0)
    monkeypatch.setattr(Replica, "start_and_finish", timed)
    monkeypatch.setattr(AutoBalance, "note", noted)
    train_linear(DATA * 9, micro_batch=50, n_iter=25, balance="auto")
    ideal = 100 / (1 / cost["cpu"] + 1 / cost["cpu:1"])
    reached = [ideal / max(n * c for n, c in zip(sizes, cost.values(), strict=True)) for sizes in shards]
    assert shards[0] == [50, 50] and reached[0] < 0.5
    assert float(np.median(reached[19:])) >= 0.9, shards


def test_auto_balance_gives_the_same_bits(device: str, slow: dict[str, float]) -> None:
    slow[places(device, 3)[-1]] = 0.001
    assert_equal(train(places(device, 3), balance="auto", n_iter=8), train(places(device, 1), n_iter=8))


def test_shares_follow_the_measured_times() -> None:
    balance = AutoBalance(["cpu", "cpu:1", "cpu:1"])
    assert balance.sizes(9) == [3, 3, 3]
    balance.note([3, 3, 3], [9.0, 1.0, 1.0])  # the first step compiles
    assert balance.sizes(9) == [3, 3, 3]
    balance.note([3, 3, 3], [0.3, 0.6, 0.6])  # 0.1 s and 0.2 s per sample; two replicas share the second device
    assert balance.sizes(63) == [41, 11, 11]
    assert balance.sizes(2) == [1, 1, 0]
    for _ in range(20):
        balance.note([1, 1, 1], [1.0, 0.01, 0.01])
    assert balance.sizes(9)[0] == 1  # never none, so that a device that recovers is noticed


def test_fixed_shares_do_not_follow() -> None:
    balance = Balance([3.0, 1.0])
    balance.note([3, 1], [1.0, 9.0])
    assert balance.sizes(8) == [6, 2]


def test_the_report_adds_up(slow: dict[str, float]) -> None:
    slow["cpu:1"] = 0.02  # 0.3 s in all, beside which a busy machine's moments are short
    result: ag.DPResult = train_linear(micro_batch=3, n_iter=5)
    fast, late = result.report
    assert (fast["shard"], fast["samples"], late["samples"]) == (3, 15, 15)
    assert late["compute_ms"] >= 300 and fast["wait_ms"] >= 200 and fast["wait_ms"] > late["wait_ms"]
    assert fast["compute_ms"] + fast["wait_ms"] == pytest.approx(late["compute_ms"] + late["wait_ms"], abs=100)
