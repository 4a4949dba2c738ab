"""Memory that passes between a recorded step and another thread: refused where a replay would miss something."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ag
from ag.capture.step import CapturedStep

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def elsewhere(function: Callable[[], Any]) -> Any:
    """The result in another thread; an error of there is returned."""
    def run() -> Any:
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - the caller sees it
            return error

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


class World:
    """State, and captured steps that were replayed, one of which changes it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.state, self.big = ag.ag_tensor(X + 1, device), ag.ag_tensor(np.ones((64, 64), np.float32), device)
        self.param = ag.ag_param(X, device)
        optimizer = ag.optimizer_sgd({"p": self.param}, lr=0.5)

        def train() -> None:
            with ag.with_grad_tape():
                loss = ag.ag_sum(self.param * self.state)
            optimizer.step(ag.backward(loss))

        self.train, self.small = train, ag.ag_capture(lambda x: x * 2.0)
        self.large, self.replay = ag.ag_capture(lambda x: x * 2.0), ag.ag_capture(train)
        for _ in range(4):
            self.small(self.state)
            self.large(self.big)
            self.replay()
        self.held = self.large(self.big)

    def put(self, value: float) -> None:
        self.state.data = X * value


Case = Callable[[World, Any], Any]
REFUSED: dict[str, Case] = {
    "it launches on a result": lambda w, x: (h := x * 2.0, elsewhere(lambda: h * 3.0), h)[2],
    "it launches on an argument": lambda w, x: (elsewhere(lambda: x * 3.0), x * 2.0)[1],
    "it reads a result": lambda w, x: (h := x * 2.0, elsewhere(h.numpy), h)[2],
    "it reads an argument": lambda w, x: (elsewhere(x.numpy), x * 2.0)[1],
    "it launched what the step uses": lambda w, x: x * elsewhere(lambda: w.state * 3.0),
    "it uploaded what the step uses": lambda w, x: x * elsewhere(lambda: ag.ag_tensor(X * 7, w.device)),
    "it detached what the step uses": lambda w, x: x * elsewhere(w.state.detach),
    "it trains what the step uses then": lambda w, x: (elsewhere(w.train), x * w.param)[1],
    "it assigns to what the step uses then": lambda w, x: (elsewhere(lambda: w.put(5.0)), x * w.state)[1],
    "it replays into what the step uses then": lambda w, x: (elsewhere(w.replay), x * w.param)[1],
    "it trains what the step has used": lambda w, x: (x * w.param, elsewhere(w.train))[0],
    "it assigns to what the step has used": lambda w, x: (x * w.state, elsewhere(lambda: w.put(5.0)))[0],
    "it hands over a small result of a replay": lambda w, x: x * elsewhere(lambda: w.small(w.state)),
    "it hands over a large result of a replay": lambda w, x: x * ag.ag_sum(elsewhere(lambda: w.large(w.big))),
    "it draws from the same generator": lambda w, x: (
        ag.ag_dropout(0.5)(x), elsewhere(lambda: ag.ag_dropout(0.5)(w.state)), ag.ag_dropout(0.5)(x))[2],
}
ALLOWED: dict[str, Case] = {
    "it works on its own": lambda w, x: (elsewhere(lambda: (w.state * 3.0).numpy()), x * 2.0)[1],
    "it reads state": lambda w, x: (elsewhere(w.state.numpy), x * w.state)[1],
    "both use a new number": lambda w, x: (elsewhere(lambda: w.state * 0.123457), x * 0.123457)[1],
    "a result of before moves out": lambda w, x: (elsewhere(lambda: w.held * 1.0), x * ag.ag_sum(w.held))[1],
}


@pytest.mark.parametrize("trial", [False, True], ids=["captured", "trial"])
@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(device: str, case: str, trial: bool) -> None:
    world = World(device)
    step = CapturedStep(lambda x: REFUSED[case](world, x), trial=trial)
    with ag.ag_device(device), pytest.raises(ag.CaptureError, match="passes between the step's thread and another one"):
        for k in range(3):
            step(ag.ag_tensor(X + k, device))


@pytest.mark.parametrize("trial", [False, True], ids=["captured", "trial"])
@pytest.mark.parametrize("case", ALLOWED)
def test_it_is_allowed(device: str, case: str, trial: bool) -> None:
    world, beside = World(device), World(device)
    step = CapturedStep(lambda x: ALLOWED[case](world, x), trial=trial)
    with ag.ag_device(device):
        for k in range(5):
            x = ag.ag_tensor(X + k, device)
            np.testing.assert_array_equal(step(x).numpy(), ALLOWED[case](beside, x).numpy())
