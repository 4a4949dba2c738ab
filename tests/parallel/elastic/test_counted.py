"""Which samples the committed steps of a job take: each once in a pass, shuffled, whatever the ranks and the losses.

Every sample has a weight of its own, which moves by one whenever the sample is in a step: the weights count.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.ranks import dealt, outcomes
from parallel.elastic.killed import Killed, doomed

import ag
from ag.parallel.comm.comm import Comm

SAMPLES, PASSES, BATCH = 1003, 3, 59
STEPS = SAMPLES // BATCH  # 17 steps are a pass
DATA = [np.array([i]) for i in range(SAMPLES)]


def job(ranks: int, killed: dict[int, int]) -> list[list[np.ndarray]]:
    """Of every rank that is left, the counts of all samples after each step."""
    def work(comm: Comm) -> list[np.ndarray]:
        counts: list[np.ndarray] = []

        def committed(step: ag.DPStep) -> None:
            weights = -step.models[0].weight.numpy().ravel()
            counts.append(np.rint(weights).astype(int))
            assert np.abs(weights - counts[-1]).max() < 1e-3 and step.step == len(counts) - 1

        ag.dp_train(lambda: zeros(ag.ag_embedding(SAMPLES, 1)), DATA, lambda out, ids: ag.ag_mean(out),
                    devices=dealt(ranks, 1)[comm.rank], n_iter=PASSES * STEPS, batch=BATCH, stack=8, seed=2,
                    verbose=False, optimizer=lambda p: ag.optimizer_sgd(p, lr=BATCH), callback=committed,
                    world=doomed(comm, killed[comm.rank]) if comm.rank in killed else comm)
        return counts

    found = outcomes(ranks, work, timeout=60)
    for rank, result in enumerate(found):
        assert isinstance(result, Killed if rank in killed else list), result
    return [result for rank, result in enumerate(found) if rank not in killed]


def zeros(model: Any) -> Any:
    model.weight.data = np.zeros(model.weight.shape)
    return model


@cache
def alone() -> list[np.ndarray]:
    return job(1, {})[0]


def test_each_sample_comes_once_in_a_pass_and_shuffled() -> None:
    counts = alone()
    passes = counts[STEPS - 1 :: STEPS]
    assert [set(c.tolist()) for c in passes] == [{1}, {2}, {3}]
    taken = np.diff([np.zeros(SAMPLES, int), *counts], axis=0)
    assert set(taken.sum(1)) == {BATCH} and set(taken.ravel()) == {0, 1}
    together = [{tuple(np.flatnonzero(step)) for step in taken[k * STEPS : (k + 1) * STEPS]} for k in range(PASSES)]
    assert all(together[k].isdisjoint(together[j]) for k in range(PASSES) for j in range(k))
    assert min(np.ptp(np.flatnonzero(step)) for step in taken) > SAMPLES // 2  # not one after the other


@pytest.mark.parametrize(("ranks", "killed"), [
    (3, {}), (2, {1: 260}), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in [
        (2, {}), (4, {}), (3, {0: 120}), (4, {2: 260}), (4, {0: 333})])])
def test_ranks_take_the_same_samples(ranks: int, killed: dict[int, int]) -> None:
    """Also when one of them is killed in the first or the second pass."""
    for counts in job(ranks, killed):
        assert np.array_equal(counts, alone())
