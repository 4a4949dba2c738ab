"""Cotangents of slices: put side by side where the slices make up the tensor, spread and added where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

import ag

RNG = np.random.default_rng(9)
Cut = Callable[[ag.Tensor], list[ag.Tensor]]
CUTS: dict[str, Cut] = {
    "all": lambda t: [t[:2], t[2:3], t[3:]],
    "in another order": lambda t: [t[3:], t[:2], t[2:3]],
    "two of three": lambda t: [t[:2], t[3:]],
    "overlapping": lambda t: [t[:4], t[2:]],
    "as many elements, but not all": lambda t: [t[:3], t[1:4]],
    "one": lambda t: [t[1:3]],
    "one twice": lambda t: [t[:3], t[:3]],
    "rows": lambda t: [t[0], t[1], t[2], t[3], t[4], t[5]],
    "columns": lambda t: [t[:, :1], t[:, 1:]],
    "every second": lambda t: [t[::2], t[1::2]],
    "corners": lambda t: [t[:2, :2], t[2:]],
    "and the whole": lambda t: [t[:2], t[2:], t],
    "the whole, and all": lambda t: [t, t[:2], t[2:]],
}


def gradient(cut: Cut, leaf: bool, dtype: str = "f32") -> tuple[ag.Tensor, np.ndarray, np.ndarray]:
    """A parameter of whose pieces a weighted sum is made; its gradient, and the expected one."""
    values = RNG.standard_normal((6, 4))
    p = ag.ag_param(values, dtype=dtype)
    weights = [RNG.standard_normal(x.shape) for x in cut(ag.ag_tensor(values))]
    expected = np.zeros((6, 4))
    places = np.arange(24.0).reshape(6, 4)
    for piece, w in zip(cut(ag.ag_tensor(places)), weights, strict=True):
        np.add.at(expected.reshape(-1), piece.numpy().astype(int).reshape(-1), w.reshape(-1))
    with ag.with_grad_tape():
        x = p if leaf else p * 1.0
        pieces = cut(x)
        sums = [ag.ag_sum(piece * ag.ag_tensor(w, dtype=dtype).reshape(*piece.shape))
                for piece, w in zip(pieces, weights, strict=True)]
        loss = reduce(ag.ag_add, sums)
    return p, ag.backward(loss)[p].numpy(), expected


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "computed"])
@pytest.mark.parametrize("name", CUTS)
def test_gradients_of_slices(name: str, leaf: bool, device: str) -> None:
    _, found, expected = gradient(CUTS[name], leaf)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["all", "two of three", "overlapping"])
def test_gradients_of_slices_of_16_bits(name: str, device: str) -> None:
    _, found, expected = gradient(CUTS[name], False, "bf16")
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


def test_slices_that_make_up_a_tensor_cost_nothing_when_captured(device: str) -> None:
    a = ag.ag_param(RNG.standard_normal((6, 5)))
    optimizer = ag.optimizer_sgd([a])

    def step(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            y = ag.ag_matmul(a, x)
            q, k, v = y[:2], y[2:4], y[4:]
            loss = ag.ag_sum(ag.ag_attention(q, k, v, causal=True))
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    x = ag.ag_tensor(RNG.standard_normal((5, 7)))
    before = a.numpy()
    step(x)
    eager = a.numpy()
    a.data = before
    captured = ag.ag_capture(step)
    captured(x)
    assert (a.numpy() == eager).all()
    captured(x)  # recorded and compared once more
    with ag.profile() as seen:
        captured(x)
    kinds = Counter(e.kernel for e in seen.events)
    assert kinds["attention_grad"] == 1 and not {"spread", "add", "copy"} & kinds.keys()
    a.data = before
    captured(x)
    assert (a.numpy() == eager).all()


def test_what_lies_behind_may_be_walked_again(device: str) -> None:
    p = ag.ag_param(RNG.standard_normal((4, 3)))
    with ag.with_grad_tape():
        x = p * 2.0
        loss = ag.ag_sum(x[:2]) + ag.ag_sum(x[2:] * 3.0)
    first = ag.backward(loss, retain=True)[p].numpy()
    assert (first == [[2.0] * 3] * 2 + [[6.0] * 3] * 2).all()
    assert (ag.backward(loss)[p].numpy() == first).all()
