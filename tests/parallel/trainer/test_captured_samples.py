"""`dp_train(capture="auto")` with functions that cannot be captured: each is called once per sample, as without."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag
from ag.parallel.trainer.replica import Replica

DATA = [(np.random.default_rng(k).normal(size=(3, 4)).astype(np.float32), np.full((2, 4), k, np.float32))
        for k in range(14)]
Act = Callable[[Any, "Counted"], Any]


class Counted:
    """The generators that functions of a job draw from, the calls that they count, and the objects that they keep."""

    def __init__(self) -> None:
        random.seed(5)
        self.calls, self.rng, self.python, self.kept = 0, np.random.default_rng(3), random.Random(4), list[object]()
        self.inner = ag.ag_capture(lambda t: t * 2.0)


def buffer_of(x: Any) -> float:
    """Code that takes arrays only."""
    return float(memoryview(x)[0, 0])


ACTS: dict[str, Act] = {
    "noise of numpy": lambda x, c: 1.0 if c.rng.random() < 0.8 else 0.0,
    "noise of Python": lambda x, c: 1.0 if c.python.random() < 0.8 else 0.0,
    "noise of the module": lambda x, c: 1.0 if random.random() < 0.8 else 0.0,
    "a tensor's values": lambda x, c: float(ag.ag_tensor(x).numpy().max()), "values": lambda x, c: float(np.mean(x)),
    "a parameter": lambda x, c: ag.ag_param([[2.0]]).detach(), "a buffer": lambda x, c: buffer_of(x),
    "another array": lambda x, c: ag.ag_tensor(np.ones((2, 4), np.float32)), "a captured step": lambda x, c: c.inner(
        ag.ag_tensor(np.float32(1.5))), "a counter": lambda x, c: float(c.calls),
    "keeps": lambda x, c: c.kept.append(ag.ag_tensor(x) * 2.0) or 1.0,  # type: ignore[func-returns-value]
}


def job(act: Act, capture: bool | str, device: str) -> tuple[list[float], int, float, int]:
    counted = Counted()

    def forward(model: ag.Layer, sample: Any) -> ag.Tensor:
        counted.calls += 1
        factor = act(sample[0], counted)
        return model(ag.ag_tensor(sample[0])) * factor

    ag.ag_seed(1)
    result = ag.dp_train(lambda: ag.ag_linear(3, 2), DATA, ag.ag_mse_loss, forward, lambda s: s[1], n_iter=30,
                         verbose=False, devices=[device], capture=capture)
    drawn = counted.rng.random() + counted.python.random()
    return result.loss_history.tolist(), counted.calls, drawn, len(counted.kept)


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_functions_are_called_once_per_sample(act: Act, device: str) -> None:
    found, wanted = job(act, "auto", device), job(act, False, device)
    if act is ACTS["a buffer"]:  # its error ends the first call, which is made again
        found, wanted = (found[0], 0, *found[2:]), (wanted[0], 0, *wanted[2:])
    assert found == wanted


def test_the_warning_names_the_line_of_the_user(caplog: pytest.LogCaptureFixture) -> None:
    job(ACTS["another array"], "auto", "cpu")
    (record,) = caplog.records
    lines = Path(__file__).read_text("utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if '"another array"' in text)
    assert "uploads an array of shape (2, 4)" in record.getMessage()
    assert f"Called in {__file__}, line {line}: `" in record.getMessage()


def test_an_error_of_the_users_own() -> None:
    def wrong(x: Any, counted: Counted) -> float:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        job(wrong, "auto", "cpu")


def test_with_capture_it_is_an_error() -> None:
    with pytest.raises(ag.CaptureError, match="takes something from rng"):
        job(ACTS["noise of numpy"], True, "cpu")


SHAPES = [(np.full((3, n), 0.1 * k, np.float32), np.full((2, n), k, np.float32)) for k, n in enumerate([4, 2, 4, 2])]
X, Y = ag.ag_tensor(SHAPES[2][0], device="cpu"), ag.ag_tensor(SHAPES[2][1], device="cpu")
KINDS: dict[str, tuple[list[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "two shapes in turn": (SHAPES, lambda s: s[0], lambda s: s[1]),
    "one list in two places": ([{"first": (words := ["a"]), "again": words, "x": x, "y": y} for x, y in SHAPES],
                               lambda s: s["x"] if s["first"] is s["again"] else None, lambda s: s["y"]),
    "a tensor twice": ([(t := ag.ag_tensor(x, device="cpu:5"), t, y) for x, y in SHAPES],
                       lambda s: s[0] if s[0] is s[1] else None, lambda s: s[2]),
    "numbers": ([1.0, 2.0, 1.0, 2.0], lambda s: X * s, lambda s: Y)}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_samples_that_are_replayed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, x_of, y_of = KINDS[kind]
    calls = list[int]()

    def gradients(self: Replica, sample: Any, compute: Any = Replica._gradients) -> None:
        calls.append(len(calls))
        compute(self, sample)

    monkeypatch.setattr(Replica, "_gradients", gradients)
    losses = []
    for capture in (False, True):
        calls.clear()
        ag.ag_seed(1)
        losses.append(ag.dp_train(lambda: ag.ag_linear(3, 2), data, ag.ag_mse_loss, lambda m, s: m(x_of(s)), y_of,
                                  n_iter=40, batch=4, devices=["cpu"], stack=1, shuffle=False, verbose=False,
                                  capture=capture).loss_history)
    assert len(calls) == 2 * 4  # calls 1, 2, 8 and 32 of 80 are Python's
    np.testing.assert_array_equal(*losses)


@pytest.mark.parametrize("other", [object(), np.ma.zeros(2)], ids=["object", "MaskedArray"])
def test_a_sample_that_cannot_be_captured_comes_after_replays(other: object, caplog: pytest.LogCaptureFixture) -> None:
    """Replays of other kinds were right."""
    data = [*SHAPES[:1] * 12, (*SHAPES[0], other), *SHAPES[:1] * 3]
    result = ag.dp_train(lambda: ag.ag_linear(3, 2), data, ag.ag_mse_loss, lambda m, s: m(s[0]), lambda s: s[1],
                         n_iter=16, devices=["cpu"], shuffle=False, verbose=False)
    assert len(result.loss_history) == 16
    (record,) = caplog.records
    assert "uncaptured" in record.getMessage() and type(other).__name__ in record.getMessage()


def test_a_step_that_asks_for_types_is_refused_if_it_must_be_captured(caplog: pytest.LogCaptureFixture) -> None:
    def forward(model: ag.Layer, sample: Any) -> ag.Tensor:
        x = sample[0]
        return model(ag.ag_tensor(x) if type(x) is np.ndarray else x)

    def run(capture: bool | str) -> list[float]:
        ag.ag_seed(1)
        losses: list[float] = ag.dp_train(lambda: ag.ag_linear(3, 2), DATA, ag.ag_mse_loss, forward, lambda s: s[1],
                                          n_iter=5, verbose=False, devices=["cpu"], capture=capture
                                          ).loss_history.tolist()
        return losses

    with pytest.raises(ag.CaptureError, match="asks for type"):
        run(True)
    assert run("auto") == run(False)
    assert sum("uncaptured" in line for line in caplog.messages) == 1
