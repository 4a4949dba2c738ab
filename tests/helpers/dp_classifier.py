"""Runs of dp_train with a small classifier, and what must be equal between two of them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

import ag

RNG = np.random.default_rng(3)
DATA = [(RNG.standard_normal((4, 1)).astype(np.float32), np.array([i % 3])) for i in range(30)]
BATCH = 24  # for 1, 2, 3, 4 and 8 replicas; 5 of these shards are no whole node of the reduction tree
STEPS = 4


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_dropout(0.25), ag.ag_linear(6, 3))


def places(device: str, n: int) -> list[str]:
    """Like devices for n replicas: CPU devices of their own, or one Vulkan device for all."""
    return [device if device != "cpu" else f"cpu:{i}" for i in range(n)]


def train(devices: list[str], **options: Any) -> ag.DPResult:
    settings = {"micro_batch": BATCH // len(devices), "n_iter": STEPS, "lr": 0.05, "seed": 4, "verbose": False,
                "stack": 1, "shuffle": False}
    return ag.dp_train(make_model, DATA, ag.ag_softmax_cross_entropy_loss, lambda model, s: model(s[0]),
                       lambda s: s[1], devices=devices, **{**settings, **options})


def outcome(result: ag.DPResult) -> dict[str, np.ndarray]:
    """Everything that must be equal."""
    states = result.optimizer_state if isinstance(result.optimizer_state, list) else [result.optimizer_state]
    return {"losses": result.loss_history, **{n: p.numpy() for n, p in result.params.items()},
            **{f"{i or ''}{n}": x for i, state in enumerate(states) for n, x in state.items()}}


def digest(result: ag.DPResult) -> str:
    """Of losses, weights, optimizers and buffers."""
    arrays = [*outcome(result).values(), *result.model.state_dict().values()]
    return sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()[:16]


def assert_equal(found: ag.DPResult, expected: ag.DPResult) -> None:
    a, b = outcome(found), outcome(expected)
    assert a.keys() == b.keys()
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []
