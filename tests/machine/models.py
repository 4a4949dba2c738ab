"""The models of the state machine, one for each kind of trouble, with the data that they take."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import ag

Array = Any


class Shared(ag.Layer):
    """Two parameters are added, so they get one cotangent, and a parameter is added to the loss itself."""

    def __init__(self) -> None:
        self.W, self.delta = ag.ag_param(host((2, 3), 1)), ag.ag_param(host((2, 3), 2))
        self.offset = ag.ag_param(0.5)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return (self.W + self.delta) @ x

    def penalty(self) -> ag.Tensor:
        return self.offset


class Tied(ag.Layer):
    """One weight used twice."""

    def __init__(self) -> None:
        self.W = ag.ag_param(host((4, 3), 3))
        self.noise = ag.ag_dropout(0.25)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.W.T @ self.noise(ag.ag_tanh(self.W @ x))


class Tokens(ag.Layer):
    """A small transformer: token ids in, scores of tokens out."""

    def __init__(self) -> None:
        self.table, self.norm = ag.ag_embedding(7, 4), ag.ag_layer_norm(4)
        self.mix, self.out = ag.ag_multihead_attention(4, 2, dropout=0.25), ag.ag_linear(4, 7)

    def forward(self, ids: Array) -> ag.Tensor:
        h = self.table(ids)
        return self.out(h + self.mix(self.norm(h), causal_mask=True))


class Custom(ag.Layer):
    """A user's own layer, with settings of every kind: numbers, in dicts and lists, in an object that is no layer."""

    def __init__(self) -> None:
        self.inner, self.outer, self.noise = ag.ag_linear(3, 4), ag.ag_linear(4, 2), ag.ag_dropout(0.5)
        self.temperature, self.gains, self.shifts = 1.5, {"a": 0.5}, [0.25]
        self.options = SimpleNamespace(slope=0.125, activation="leaky")

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        h = self.inner(x) * self.temperature + self.shifts[0]
        h = ag.ag_leaky_relu(h, self.options.slope) if self.options.activation == "leaky" else ag.ag_tanh(h)
        return self.outer(self.noise(h) * self.gains["a"])


class Checkpointed(ag.Layer):
    """Activations are computed again by `backward`, with the same masks."""

    def __init__(self) -> None:
        self.body = ag.ag_sequential(ag.ag_linear(3, 4, "silu"), ag.ag_layer_norm(4), ag.ag_dropout(0.5))
        self.out = ag.ag_linear(4, 2)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.out(ag.ag_checkpoint(self.body, x))


class Counting(ag.Layer):
    """A layer whose result depends on how often it was called."""

    def __init__(self) -> None:
        self.inner, self.calls = ag.ag_linear(3, 2), 0

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        self.calls += 1
        return self.inner(x) * (1.0 + self.calls % 3)


def host(shape: tuple[int, ...], seed: int) -> Array:
    """Small numbers that are the same everywhere."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(np.float32)


def _vectors(outputs: int) -> Callable[[Any, int], tuple[Array, Array]]:
    return lambda rng, n: (rng.normal(size=(3, n)).astype(np.float32), rng.normal(size=(outputs, n)).astype(np.float32))


def _classes(rng: Any, n: int) -> tuple[Array, Array]:
    return rng.normal(size=(3, n)).astype(np.float32), rng.integers(0, 2, n)


def _deep() -> ag.Layer:
    """Layers enough for rematerialization to have something to do."""
    return ag.ag_sequential(
        ag.ag_linear(3, 10, "relu"),
        ag.ag_batch_norm(10),
        ag.ag_dropout(0.5),
        ag.ag_residual(ag.ag_linear(10, 10, "sigmoid")),
        ag.ag_layer_norm(10),
        ag.ag_dropout(0.25),
        ag.ag_linear(10, 2),
    )


class Kind(NamedTuple):
    """A kind of model: functions that make the model and a batch for it, and its loss."""

    make: Callable[[], ag.Layer]
    batch: Callable[[Any, int], tuple[Array, Array]]
    loss: Callable[[ag.Tensor, Any], ag.Tensor] = ag.ag_mse_loss


_ids = ag.ag_softmax_cross_entropy_loss
KINDS = {
    "dense": Kind(
        lambda: ag.ag_sequential(ag.ag_linear(3, 4, "gelu"), ag.ag_dropout(0.5), ag.ag_linear(4, 2)), _vectors(2)
    ),
    "plain": Kind(lambda: ag.ag_sequential(ag.ag_linear(3, 4, "sigmoid"), ag.ag_linear(4, 2)), _vectors(2)),
    "norms": Kind(
        lambda: ag.ag_sequential(ag.ag_linear(3, 4, "relu"), ag.ag_batch_norm(4), ag.ag_linear(4, 2)), _classes, _ids
    ),
    "shared": Kind(Shared, _vectors(2)),
    "tied": Kind(Tied, _vectors(3)),
    "tokens": Kind(Tokens, lambda rng, n: (rng.integers(0, 7, (3, n)), rng.integers(0, 7, (3, n))), _ids),
    "images": Kind(
        lambda: ag.ag_sequential(
            ag.ag_conv2d_layer(1, 2, 3, activation="relu"),
            ag.ag_batch_norm(2),
            ag.ag_max_pool(2),
            ag.ag_flatten_layer(),
            ag.ag_linear(8, 2),
        ),
        lambda rng, n: (rng.normal(size=(1, 6, 6, n)).astype(np.float32), rng.integers(0, 2, n)),
        _ids,
    ),
    "deep": Kind(_deep, _vectors(2)),
    "custom": Kind(Custom, _vectors(2)),
    "checkpointed": Kind(Checkpointed, _vectors(2)),
    "counting": Kind(Counting, _vectors(2)),
}
