"""Runs of dp_train with models that have buffers, and with several optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.dp_classifier import assert_equal

import ag

RNG = np.random.default_rng(8)
DATA = [((1 + RNG.standard_normal((4, 2 + i % 3))).astype(np.float32), RNG.integers(0, 3, 2 + i % 3))
        for i in range(29)]
BATCH = 12


class Average(ag.Layer):
    """Keeps an average of what it sees, in a new tensor each time; has a mask and a table that stay as they are."""

    def __init__(self) -> None:
        self.seen = ag.ag_tensor(np.zeros((4, 1)))
        self.calls = ag.ag_tensor(np.zeros(1))
        self.mask = ag.ag_tensor(np.array([[0.0], [-np.inf]]))
        self.table = ag.ag_linear(3, 3).W.detach()  # random, and another one on every replica
        self.numbers = ag.ag_tensor((99 * self.table.numpy()).astype(np.int32), dtype="i32")

    def forward(self, x: Any) -> Any:
        x = x if isinstance(x, ag.Tensor) else ag.ag_tensor(x)
        with ag.no_grad():
            self.seen = self.seen * 0.9 + ag.ag_mean(x, dim=1, keepdim=True) * 0.1
            self.calls = self.calls + 1.0
        return x


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6), ag.ag_batch_norm(6), ag.ag_dropout(0.25), ag.ag_linear(6, 3),
                            ag.ag_batch_norm(3, momentum=0.5))


def with_average() -> ag.Layer:
    return ag.ag_sequential(Average(), make_model())


def train(devices: list[str], make: Any = make_model, batch: int = BATCH, **options: Any) -> ag.DPResult:
    settings: dict[str, Any] = {"micro_batch": batch // len(devices), "n_iter": 2, "lr": 0.02, "seed": 5,
                                "verbose": False, "stack": 1, "shuffle": False}
    settings |= {"loss_fn": ag.ag_softmax_cross_entropy_loss, "forward_fn": lambda model, s: model(s[0]),
                 "target_fn": lambda s: s[1]}
    return ag.dp_train(make, DATA, devices=devices, **{**settings, **options})


def buffers(model: Any) -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in model.buffers().items()}


def assert_same(found: ag.DPResult, expected: ag.DPResult) -> None:
    """Also in the buffers of the model."""
    assert_equal(found, expected)
    assert_same_buffers(found.model, expected.model)


def assert_same_buffers(model: Any, other: Any) -> None:
    a, b = buffers(model), buffers(other)
    assert a.keys() == b.keys()
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


class Scaled(ag.Layer):
    def __init__(self, statistics: bool) -> None:
        self.W = ag.ag_param(np.ones((3, 4)))
        if statistics:
            self.mean, self.variance = ag.ag_tensor(np.zeros(3)), ag.ag_tensor(np.ones(3))

    def forward(self, x: Any) -> Any:
        return self.W @ ag.ag_tensor(x)


Params = dict[str, ag.Tensor]


def decayed(params: Params) -> Any:
    return ag.optimizer_adamw({name: p for name, p in params.items() if name.endswith("W")}, lr=0.02, weight_decay=0.1)


def two(params: Params) -> list[Any]:
    """AdamW with weight decay for the matrices, SGD for the rest."""
    return [decayed(params), ag.optimizer_sgd([p for name, p in reversed(params.items()) if not name.endswith("W")],
                                              lr=0.05, momentum=0.9)]
