"""Learning rate schedules: their closed forms, resumed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


def optimizer(lr: float = 0.3) -> Any:
    return ag.optimizer_sgd({"W": ag.ag_param([[1.0]])}, lr=lr)


def rates(schedule: Any, count: int) -> list[float]:
    """The rate before the first step and after each of `count`; `get_lr` and the optimizer must agree."""
    found = [schedule.get_lr()]
    assert schedule.optimizer.lr == found[0]
    for _ in range(count):
        found.append(schedule.step())
        assert found[-1] == schedule.get_lr() == schedule.optimizer.lr
    return found


def test_step() -> None:
    found = rates(ag.lr_scheduler_step(optimizer(), 3), 10)
    assert found == [0.3 * 0.1 ** (k // 3) for k in range(11)]
    assert rates(ag.lr_scheduler_step(optimizer(), 1, gamma=0.0), 2) == [0.3, 0, 0]


@pytest.mark.parametrize("T_max", [1, 2, 7, 1000])
@pytest.mark.parametrize(("lr", "lr_min"), [(0.3, 0.0), (0.3, 0.1), (1e-3, 1e-5), (0.7, 0.7)])
def test_cosine_begins_at_lr_and_ends_at_lr_min(T_max: int, lr: float, lr_min: float) -> None:
    found = rates(ag.lr_scheduler_cosine(optimizer(lr), T_max, lr_min), T_max + 3)
    assert found[0] == lr and found[T_max:] == [lr_min] * 4
    half = [lr_min + (lr - lr_min) * (1 + np.cos(np.pi * k / T_max)) / 2 for k in range(T_max + 1)]
    np.testing.assert_allclose(found[: T_max + 1], half, rtol=1e-12, atol=1e-15)
    assert all(a >= b for a, b in pairwise(found))


def test_cosine_with_restarts_reaches_lr_min_in_every_round() -> None:
    found = rates(ag.lr_scheduler_cosine(optimizer(), 4, 0.1, restart=True), 14)
    assert found[:5] == found[5:10] == found[10:15]
    assert found[0] == 0.3 and found[4] == 0.1


def test_warmup() -> None:
    found = rates(ag.lr_scheduler_warmup(optimizer(), 4), 6)
    assert found == [0.3 * (k / 4) for k in (1, 2, 3, 4, 4, 4, 4)]
    assert rates(ag.lr_scheduler_warmup(optimizer(), 1), 1) == [0.3, 0.3]


def test_warmup_then_cosine() -> None:
    opt = optimizer()
    after = ag.lr_scheduler_cosine(opt, 5, 0.1)
    found = rates(ag.lr_scheduler_warmup(opt, 3, after=after), 12)
    assert found == [0.3 * (1 / 3), 0.3 * (2 / 3), 0.3, *rates(ag.lr_scheduler_cosine(optimizer(), 5, 0.1), 9)]
    assert after.steps == 10 - 1 and after.get_lr() == found[-1]


def test_warmup_of_a_warmup_keeps_the_rate_to_reach() -> None:
    opt = optimizer()
    schedule = ag.lr_scheduler_warmup(opt, 2, after=ag.lr_scheduler_warmup(opt, 2))
    assert rates(schedule, 4) == [0.15, 0.3, 0.15, 0.3, 0.3]


def test_repr() -> None:
    schedule = ag.lr_scheduler_step(optimizer(), 2)
    schedule.step()
    assert repr(schedule) == "StepSchedule(step_size=2, gamma=0.1, lr=0.3, steps=1)"


def test_a_schedule_inside_a_captured_step_is_refused() -> None:
    opt = optimizer()
    schedule = ag.lr_scheduler_step(opt, 1)

    def step(x: ag.Tensor) -> ag.Tensor:
        schedule.step()
        return x * 2.0

    with expect_error("stepping a schedule inside a captured step", ag.CaptureError, "optimizer's lr"):
        ag.ag_capture(step)(ag.ag_tensor([1.0]))
    assert schedule.steps == 0 and opt.lr == 0.3


MADE: dict[str, Callable[[Any], Any]] = {
    "step": lambda opt: ag.lr_scheduler_step(opt, 2, 0.5),
    "cosine": lambda opt: ag.lr_scheduler_cosine(opt, 6, 0.1, restart=True),
    "warmup": lambda opt: ag.lr_scheduler_warmup(opt, 3),
    "warmup and cosine": lambda opt: ag.lr_scheduler_warmup(opt, 3, after=ag.lr_scheduler_cosine(opt, 6)),
}


@pytest.mark.parametrize("kind", MADE)
def test_resuming(kind: str) -> None:
    schedule = MADE[kind](optimizer())
    for _ in range(5):
        schedule.step()
    state = json.loads(json.dumps(schedule.state_dict()))
    resumed = MADE[kind](optimizer(0.9))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == schedule.state_dict()
    assert rates(resumed, 9) == rates(schedule, 9)


def test_a_state_that_does_not_fit_is_refused() -> None:
    schedule = MADE["warmup and cosine"](optimizer())
    before, lr = schedule.state_dict(), schedule.optimizer.lr

    def refused(what: str, state: Any, *fragments: str) -> None:
        with expect_error(f"a schedule's state {what}", ag.CheckpointError, *fragments):
            schedule.load_state_dict(state)
        assert schedule.state_dict() == before and schedule.optimizer.lr == lr

    refused("of another kind", {**before, "kind": "StepSchedule"}, "'StepSchedule'", "'WarmupSchedule'")
    refused("with other settings", {**before, "warmup": 4}, "warmup is 4 instead of 3")
    refused("with another schedule to follow", {**before, "after": {**before["after"], "T_max": 9}}, "T_max is 9")
    refused("without the schedule to follow", {**before, "after": None}, "None")
    refused("with a name missing", {k: v for k, v in before.items() if k != "steps"}, "steps")
    refused("that is a list", [1, 2], "[1, 2]")
    for steps in (-1, 10**400, 1.5, "1", True, None):
        refused("with steps that are no count", {**before, "steps": steps}, "steps", repr(steps))
    for rate in (-1.0, float("nan"), "1", None):
        refused("with a rate that is none", {**before, "lr": rate}, "lr", repr(rate))
    with expect_error("a schedule's state that goes on with another schedule", ag.CheckpointError, "nothing"):
        MADE["warmup"](optimizer()).load_state_dict(before)


@pytest.mark.parametrize(("make", "fragments"), [
    (lambda opt: ag.lr_scheduler_step(opt, 0), ["lr_scheduler_step", "step_size is 0"]),
    (lambda opt: ag.lr_scheduler_step(opt, 1.5), ["step_size is 1.5"]),
    (lambda opt: ag.lr_scheduler_step(opt, 1, gamma=-1), ["gamma is -1"]),
    (lambda opt: ag.lr_scheduler_step(opt, 1, gamma=float("nan")), ["gamma is nan"]),
    (lambda opt: ag.lr_scheduler_cosine(opt, 0), ["lr_scheduler_cosine", "T_max is 0"]),
    (lambda opt: ag.lr_scheduler_cosine(opt, 5, lr_min=0.5), ["lr_min is 0.5", "0.3"]),
    (lambda opt: ag.lr_scheduler_cosine(opt, 5, lr_min=-1), ["lr_min is -1"]),
    (lambda opt: ag.lr_scheduler_warmup(opt, 0), ["lr_scheduler_warmup", "steps is 0"]),
    (lambda opt: ag.lr_scheduler_warmup(opt, 2, after=ag.lr_scheduler_step(optimizer(), 1)), ["for this optimizer"]),
    (lambda opt: ag.lr_scheduler_warmup(opt, 2, after=5), ["after is 5", "for this optimizer"]),
    (lambda opt: ag.lr_scheduler_step(opt, "2"), ["step_size is '2'"]),
    (lambda opt: ag.lr_scheduler_step(opt, 2, gamma="half"), ["gamma is 'half'"]),
    (lambda opt: ag.lr_scheduler_cosine(opt, None), ["T_max is None"]),
    (lambda opt: ag.lr_scheduler_cosine(opt, 5, lr_min="low"), ["lr_min is 'low'"]),
], ids=["step_size", "half a step", "gamma", "gamma nan", "T_max", "lr_min high", "lr_min", "steps", "after",
        "after a number", "step_size in words", "gamma in words", "no T_max", "lr_min in words"])
def test_refused(make: Callable[[Any], Any], fragments: list[str], request: pytest.FixtureRequest) -> None:
    with expect_error(f"lr_scheduler: {request.node.callspec.id}", ValueError, *fragments):
        make(optimizer())


@pytest.mark.parametrize("make", [ag.lr_scheduler_step, ag.lr_scheduler_cosine, ag.lr_scheduler_warmup])
def test_a_schedule_needs_an_optimizer(make: Callable[..., Any]) -> None:
    with expect_error(f"{make._function} of a number", TypeError, f"{make._function}: optimizer is 1;", "make one"):
        make(1, 2)
