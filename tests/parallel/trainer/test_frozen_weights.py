"""Training beside frozen tensors: replicas share their memory, and learn what one replica learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.device import backend_of
from ag.errors import CommError

RNG = np.random.default_rng(3)
TABLE, WEIGHTS = RNG.standard_normal((50, 32)), RNG.standard_normal((64, 32))
DATA = [(RNG.integers(0, 50, 6), RNG.integers(0, 50, 6)) for _ in range(12)]


class Tied(ag.Layer):
    """A frozen table, which is also the last layer, with a frozen layer and a trained one between."""

    def __init__(self, table: ag.FrozenTensor, weights: ag.FrozenTensor) -> None:
        self.words, self.wide, self.back = ag.nn.Embedding(50, 32), ag.nn.Linear(32, 64), ag.nn.Linear(64, 32)
        self.words.weight, self.wide.W = table.T, weights

    def forward(self, ids: Any) -> ag.Tensor:
        return self.back(self.wide(self.words(ids)).tanh())


def frozen() -> tuple[ag.FrozenTensor, ag.FrozenTensor]:
    return ag.ag_frozen(TABLE, "q8_0"), ag.ag_frozen(WEIGHTS, "q4_1")


def train(make: Any, devices: list[str], **options: Any) -> ag.DPResult:
    return ag.dp_train(make, DATA, lambda loss, _: loss, forward_fn=lambda model, s: ag.ops.linear_cross_entropy(
        model.words.weight.T, model(s[0]), s[1]), target_fn=lambda s: s[1], devices=devices, batch=4, n_iter=4, seed=7,
        lr=0.01, stack=1, verbose=False, **options)


def same(a: ag.DPResult, b: ag.DPResult) -> None:
    np.testing.assert_array_equal(a.loss_history, b.loss_history)
    for name, x in a.model.parameters().items():
        np.testing.assert_array_equal(x.numpy(), b.model.parameters()[name].numpy())


def test_any_number_of_replicas() -> None:
    """With tensors that all replicas have, and with some of their own, captured or not."""
    shared = frozen()
    one = train(lambda: Tied(*shared), ["cpu"], capture=True)
    assert one.loss_history[-1] < one.loss_history[0] and [*one.model.parameters()] == [
        "wide_b", "back_W", "back_b"] and not one.model.buffers()
    two = train(lambda: Tied(*shared), ["cpu", "cpu:1"], capture=True)
    same(one, two)
    for x in shared:
        assert np.shares_memory(x.memory.on(backend_of("cpu:1")).native, x.memory.home.native)
    same(one, train(lambda: Tied(*frozen()), ["cpu", "cpu:1"]))
    same(one, train(lambda: Tied(*shared), ["cpu"], capture=False))


def test_replicas_of_their_own_share_the_first_ones() -> None:
    made: list[Tied] = []

    def make() -> Tied:
        made.append(Tied(*frozen()))
        return made[-1]

    train(make, ["cpu", "cpu:1"])
    first, second = (model.frozen() for model in made)
    assert [*first] == ["words_weight", "wide_W"] and all(second[name].memory is x.memory for name, x in first.items())


def test_unlike_frozen_tensors() -> None:
    kinds = iter(("q8_0", "q4_0"))
    with pytest.raises(CommError, match=r"replica 0 has frozen tensor \('wide_W', \(64, 32\), 'q8_0'\) where"):
        train(lambda: Tied(frozen()[0], ag.ag_frozen(WEIGHTS, next(kinds))), ["cpu", "cpu:1"])


@pytest.mark.vulkan
def test_on_a_device(vulkan: str) -> None:
    """The tensors lie on the CPU; the device has a copy from its first step on, which is a captured one."""
    shared = frozen()
    found = train(lambda: Tied(*shared), [vulkan], capture=True)
    np.testing.assert_allclose(found.loss_history, train(lambda: Tied(*shared), ["cpu"]).loss_history, rtol=1e-4)
    same(found, train(lambda: Tied(*shared), [vulkan, vulkan], capture=True))
