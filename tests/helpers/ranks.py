"""Several ranks in one process: threads that make the same call, each with its place in a group, or run dp_train."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from helpers.dp_classifier import make_model

import ag
from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import thread_comms

RNG = np.random.default_rng(53)
# Ragged: samples are columns of 1 to 3 vectors, and their number fits no batch.
DATA = [(RNG.standard_normal((4, 1 + i % 3)).astype(np.float32), RNG.integers(0, 3, 1 + i % 3)) for i in range(29)]


def outcomes(size: int, work: Callable[[Comm], Any], timeout: float = 20.0) -> list[Any]:
    """What `work(comm)` returns on each rank, or the error that it raises there; all run at once."""

    def tried(comm: Comm) -> Any:
        try:
            return work(comm)
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(tried, thread_comms(size, timeout)))


def train(devices: list[str], world: Comm | None = None, **options: Any) -> ag.DPResult:
    given = {"make_model": make_model, "data": DATA, "micro_batch": 2, "n_iter": 4, "lr": 0.05, "seed": 4,
             "verbose": False, "stack": 1, "shuffle": False, **options}
    return ag.dp_train(given.pop("make_model"), given.pop("data"), ag.ag_softmax_cross_entropy_loss,
                       lambda model, s: model(s[0]), lambda s: s[1], devices=devices, world=world, **given)


def on_ranks(devices: list[list[str]], **options: Any) -> list[ag.DPResult]:
    """The result of every rank, each with some of the devices."""
    found = outcomes(len(devices), lambda comm: train(devices[comm.rank], comm, **options))
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def dealt(ranks: int, replicas: int) -> list[list[str]]:
    """CPU devices for so many replicas on each of so many ranks."""
    return [[f"cpu:{r * replicas + i}" for i in range(replicas)] for r in range(ranks)]
