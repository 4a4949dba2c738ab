"""Count the Python functions that an op of small tensors calls: as many on any machine, unlike the time they take.
Run `python tests/ops/test_calls_of_ops.py` to print the numbers; lower MOST when there are fewer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

import ag
from ag.engine.backends.cpu.library import library
from ag.engine.backends.cpu.native import _code

X, Y = (ag.ag_tensor(np.arange(32.0).reshape(4, 8) + i, device="cpu") for i in range(2))
W, B = (ag.ag_param(values, device="cpu") for values in (np.eye(3, 4), np.zeros((3, 1))))
ADAM = ag.optimizer_adam([W, B])


def loss() -> ag.Tensor:
    with ag.with_grad_tape():
        return ag.ag_sum(ag.ag_relu(W @ X + B))


def gradients() -> ag.Gradients:
    ADAM.zero_grad()
    return ag.backward(loss())


WORK: dict[str, Callable[[], object]] = {
    "add": lambda: X + Y, "relu": lambda: ag.ag_relu(X), "reshape": lambda: X.reshape(8, 4),
    "sum": lambda: ag.ag_sum(X), "softmax": lambda: ag.ag_softmax(X),
    "four ops": loss, "backward": gradients, "step": lambda: ADAM.step(gradients())}
MOST = {"add": 9, "relu": 7, "reshape": 16, "sum": 14, "softmax": 9, "four ops": 48, "backward": 120, "step": 170}


def calls_of(work: Callable[[], object]) -> int:
    """Functions in Python that run, `work` apart; the least of a few times, as garbage may be collected in one."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    found = []
    for _ in range(6):
        calls, before = 0, sys.getprofile()
        sys.setprofile(count)
        try:
            work()
        finally:
            sys.setprofile(before)
        found.append(calls - 1)
    return min(found)


@pytest.mark.skipif(library() is None or _code is None, reason="no kernels in C: not built, or AG_CPU is numpy")
@pytest.mark.parametrize("name", WORK)
def test_an_op_calls_few_functions(name: str) -> None:
    assert calls_of(WORK[name]) <= MOST[name]


if __name__ == "__main__":
    print({name: calls_of(work) for name, work in WORK.items()})
