"""Replays leave the same attributes, names and items in Python as the step, or there are no replays."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.capture.step import PROGRAMS_KEPT

X = [np.full((3, 4), float(k), np.float32) for k in range(14)]
SWITCH = 0


class Model(ag.Layer):
    """Does something with itself or with another object in each forward pass."""

    def __init__(self, act: Callable[[Any, Any], object], other: Any) -> None:
        super().__init__()
        self.W = ag.ag_param(np.ones((2, 3), np.float32))
        self.log: Any = None
        self.act, self.other = act, other

    def forward(self, x: Any) -> ag.Tensor:
        y = ag.ag_sum(self.W @ x)
        self.act(self, x)
        return y


def leaves(act: Callable[[Any, Any], object], look: Callable[[Model, int], object], capture: bool) -> list[object]:
    """Return what can be seen after each of some calls; looking changes it."""
    model = Model(act, SimpleNamespace(n=0, flag=False, items={}, listed=[]))
    step = ag.ag_capture(lambda x: model(x)) if capture else model
    return [(step(x).item(), look(model, k)) for k, x in enumerate(X)]


def all_so_far(model: Model, k: int) -> object:
    """A new list each time, though the caller appends to each."""
    kept = model.__dict__.setdefault("kept", [])
    kept.append(model.log)
    model.log.append(k)
    return [list(x) for x in kept]


def then(look: Callable[[Model], object], change: Callable[[Model], object]) -> Callable[[Model, int], object]:
    """Look, and now and then change what the step has left."""
    def both(model: Model, k: int) -> object:
        found = repr(look(model))
        if k in (3, 6, 7, 11):
            change(model)
        return found

    return both


def switched(model: Model) -> None:
    global SWITCH
    SWITCH = 0


def switch(model: Model, x: Any) -> None:
    global SWITCH
    SWITCH = 5


def set_flag(model: Model, x: Any) -> None:
    model.other.flag = True


def set_new(model: Model, x: Any) -> None:
    model.other.new = x.shape


def set_item(model: Model, x: Any) -> None:
    model.other.items["shape"] = x.shape


def count(model: Model, x: Any) -> None:
    model.other.n += 1


def append(model: Model, x: Any) -> None:
    model.other.listed.append(x.shape)


def delete(model: Model, x: Any) -> None:
    if hasattr(model.other, "extra"):
        del model.other.extra


def freeze(model: Model, x: Any) -> None:
    model.W.requires_grad = False


def to_the_log(make: Callable[[Any], object]) -> Callable[[Any, Any], None]:
    def act(model: Any, x: Any) -> None:
        model.log = make(x)

    return act


SHARED = object()
EFFECTS: dict[str, tuple[Callable[[Any, Any], object], Callable[[Model, int], object]]] = {
    "a new list": (to_the_log(lambda x: []), all_so_far),
    "a list of lists": (to_the_log(lambda x: [x.shape, {"a": [1]}]), then(lambda m: m.log,
                                                                         lambda m: m.log[1]["a"].append(2))),
    "a dict": (to_the_log(lambda x: {"n": 1}), then(lambda m: m.log, lambda m: m.log.update(n=2))),
    "an array": (to_the_log(lambda x: np.zeros(3)), then(lambda m: m.log, lambda m: m.log.fill(2))),
    "a shape": (to_the_log(lambda x: x.shape), then(lambda m: m.log, lambda m: setattr(m, "log", None))),
    "what was there before": (to_the_log(lambda x: SHARED), then(lambda m: m.log is SHARED,
                                                                 lambda m: setattr(m, "log", 1))),
    "a flag": (set_flag, then(lambda m: m.other.flag, lambda m: setattr(m.other, "flag", False))),
    "a new attribute": (set_new, then(lambda m: m.other.new, lambda m: delattr(m.other, "new"))),
    "an item": (set_item, then(lambda m: m.other.items, lambda m: m.other.items.clear())),
    "a counter": (count, then(lambda m: m.other.n, lambda m: setattr(m.other, "n", 0))),
    "a list that grows": (append, then(lambda m: len(m.other.listed), lambda m: m.other.listed.clear())),
    "an attribute less": (delete, then(lambda m: hasattr(m.other, "extra"), lambda m: setattr(m.other, "extra", 1))),
    "a global": (switch, then(lambda m: SWITCH, switched)),
    "requires_grad": (freeze, then(lambda m: m.W.requires_grad, lambda m: setattr(m.W, "requires_grad", True))),
}


@pytest.mark.parametrize(("act", "look"), EFFECTS.values(), ids=EFFECTS)
def test_a_replay_leaves_what_the_eager_call_would(act: Callable[[Any, Any], object],
                                                   look: Callable[[Model, int], object]) -> None:
    global SWITCH
    SWITCH = 0
    wanted = leaves(act, look, capture=False)
    SWITCH = 0
    assert leaves(act, look, capture=True) == wanted


def test_a_variable_around_the_step() -> None:
    W, n = ag.ag_param([[2.0]]), 0

    def step(x: Any) -> ag.Tensor:
        nonlocal n
        n = 5
        return ag.ag_sum(W * x)

    captured = ag.ag_capture(step)
    for k in range(12):
        captured(np.full((1, 1), float(k)))
        assert n == 5
        n = 0 if k % 3 == 2 else n


def test_what_nobody_can_make_again_is_refused() -> None:
    with expect_error("a captured step sets an attribute to a new object", ag.CaptureError, "sets log of Model to a "
                      "SimpleNamespace", "before the step"):
        leaves(to_the_log(lambda x: SimpleNamespace()), lambda m, k: None, capture=True)


def test_what_is_set_to_something_else_each_time_is_refused() -> None:
    with pytest.raises(ag.CaptureError, match=r"call 2 .* log of Model was set to \d+ and is set to \d+"):
        leaves(to_the_log(lambda x: time.perf_counter_ns()), lambda m, k: None, capture=True)


def test_a_step_that_changes_what_it_reads_says_so(caplog: pytest.LogCaptureFixture) -> None:
    W, config = ag.ag_param([[2.0]]), SimpleNamespace(n=0)

    def step(x: Any) -> ag.Tensor:
        config.n += 1
        return ag.ag_sum(W * x)

    captured = ag.ag_capture(step)
    with caplog.at_level(logging.WARNING, "ag"):
        for k in range(70):
            captured(np.full((1, 1), float(k)))
    assert config.n == 70 and not captured._programs
    (record,) = caplog.records
    assert "n was 63 and is 64" in record.getMessage() and "uncaptured" in record.getMessage()


def test_a_recording_of_no_use_takes_no_programs_place() -> None:
    W, config, counts = ag.ag_param(np.ones((1, 1))), SimpleNamespace(n=0), [False]

    def step(x: Any) -> ag.Tensor:
        if counts[0]:
            config.n += 1
        return ag.ag_sum(W * x)

    captured = ag.ag_capture(step)
    for size in range(1, PROGRAMS_KEPT + 1):
        captured(np.ones((1, size)))
    kept = captured._programs[:]
    counts[0] = True
    captured(np.ones((1, PROGRAMS_KEPT + 1)))
    assert config.n == 1 and captured._programs == kept and len(kept) == PROGRAMS_KEPT


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize("wrap", [lambda t: OrderedDict(b=t, a=t), lambda t: defaultdict(list, {"a": t}),
                                  lambda t: Pair(t, None), lambda t: [t, (t,)], lambda t: {"a": {"b": t}}])
def test_results_have_the_types_of_the_eager_call(wrap: Callable[[ag.Tensor], Any]) -> None:
    W = ag.ag_param(np.ones((2, 3), np.float32))
    step = ag.ag_capture(lambda x: wrap(ag.ag_sum(W @ x)))
    for x in X[:5]:
        found, wanted = step(x), wrap(ag.ag_sum(W @ x))
        assert type(found) is type(wanted) and repr(found) == repr(wanted)
        assert getattr(found, "default_factory", None) is getattr(wanted, "default_factory", None)
