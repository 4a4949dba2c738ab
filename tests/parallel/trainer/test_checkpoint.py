"""dp_train resumed from a checkpoint goes on bit for bit: parameters, buffers, optimizers, schedules and losses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_buffers import Scaled, assert_same, make_model, train, two, with_average
from helpers.dp_classifier import places
from helpers.errors import expect_error

import ag
from ag.parallel.trainer.checkpoint import load_state

STEPS = 5


class Following:
    """A schedule with a state that is more than its steps: what the weights were after each of them."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.total = optimizer, 0.0

    def step(self) -> None:
        self.total += sum(float(np.abs(p.numpy()).sum()) for p in self.optimizer.params.values())
        self.optimizer.lr *= 1 - 1 / (2 + self.total)

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.total = state["total"]


class Halving:
    """A schedule without a state."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.lr /= 2


def cosine(optimizer: Any) -> Any:
    return ag.lr_scheduler_cosine(optimizer, STEPS)


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_a_resumed_job_is_the_undisturbed_one(device: str, together: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_iter": STEPS, "batch": 6, "sync_batch_norm": together,
                               "scheduler": Following}
    whole = train(places(device, 1), with_average, **options)
    path = tmp_path / "job.safetensors"
    train(places(device, 2), with_average, **options | {"n_iter": 2, "checkpoint": path})
    assert_same(train(places(device, 1), with_average, **options, checkpoint=path, resume=True), whole)


@pytest.mark.parametrize(("bits", "options"), [
    ("f32", {"max_norm": 0.5}), ("f32", {"scheduler": Halving, "optimizer": two}), ("f16", {"scheduler": cosine}),
    ("bf16", {"optimizer": two})], ids=["constant", "without a state", "f16", "bf16"])
def test_with_other_schedules_optimizers_and_types(bits: str, options: dict[str, Any], tmp_path: Path) -> None:
    options = {"n_iter": 4, "batch": 4, **options}
    path = tmp_path / "job.safetensors"
    with ag.ag_dtype(bits):
        whole = train(["cpu"], **options)
        for k in (1, 3):
            train(["cpu"], **options | {"n_iter": k, "checkpoint": path}, resume=True)
        assert_same(train(["cpu", "cpu:1"], **options, checkpoint=path, resume=True), whole)


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "job.safetensors"
    train(["cpu"], n_iter=1, checkpoint=path, scheduler=cosine)
    with expect_error("dp_train(resume=True) with another number of optimizers", ag.CheckpointError, "of 1 optimizer",
                      "made 2"):
        train(["cpu"], checkpoint=path, resume=True, optimizer=two)
    with expect_error("dp_train(resume=True) with another number of schedules", ag.CheckpointError, "of 1 schedule",
                      "has 2"):
        train(["cpu"], checkpoint=path, resume=True, optimizer=two, scheduler=cosine)
    with expect_error("dp_train(resume=True) with a checkpoint of another model", ag.CheckpointError, "the checkpoint",
                      "missing W", "unexpected layer1_W"):
        train(["cpu"], lambda: Scaled(True), checkpoint=path, resume=True)
    state = load_state(path)
    assert state is not None and state.buffers.keys() == make_model().buffers().keys()
    train(["cpu"], lambda: Scaled(True), n_iter=1, checkpoint=path)
    with expect_error("dp_train(resume=True) with a checkpoint of other buffers", ag.CheckpointError, "the checkpoint",
                      "unexpected mean", "unexpected variance"):
        train(["cpu"], lambda: Scaled(False), checkpoint=path, resume=True)


def test_what_a_resumed_job_does_not_take_over_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"scheduler": cosine, "checkpoint": tmp_path / "job.safetensors"}
    train(["cpu"], n_iter=2, **options)
    train(["cpu"], n_iter=3, **options, resume=True)
    assert caplog.text == ""
    train(["cpu"], n_iter=4, **options, resume=True, lr=0.5)
    assert "lr is 0.5 and the checkpoint's is " in caplog.text and "will be replaced" not in caplog.text
    train(["cpu"], n_iter=1, **options)
    assert f"{options['checkpoint']} is there and will be replaced" in caplog.text


def sgd(**settings: float) -> Any:
    return lambda params: ag.optimizer_sgd(params, lr=0.1, **settings)


@pytest.mark.parametrize(("before", "then", "said"), [
    ({"optimizer": sgd(momentum=0.9)}, {"optimizer": sgd(momentum=0.5)}, ["momentum=0.9", "momentum=0.5"]),
    ({"optimizer": lambda p: ag.optimizer_adam(p, beta2=0.99)}, {}, ["beta2=0.99", "beta2=0.999"]),
    ({"max_norm": 0.5}, {}, ["max_norm=0.5", "max_norm=inf"]),
    ({}, {"weight_fn": lambda s: 2.0}, ["weight_fn=None", "weight_fn=a function"]),
    ({"scheduler": cosine}, {}, ["scheduler=", "scheduler=None"]),
    ({}, {"scheduler": Halving}, ["scheduler=None", "scheduler=Halving"]),
    ({"sync_batch_norm": True}, {}, ["sync_batch_norm=True", "sync_batch_norm=False"])])
def test_what_a_resumed_job_does_otherwise_is_said_once(
    before: dict[str, Any], then: dict[str, Any], said: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "job"
    train(["cpu"], n_iter=1, batch=2, checkpoint=path, **before)
    train(["cpu"], n_iter=1, batch=2, checkpoint=path, resume=True, **before)
    assert "the checkpoint was made with" not in caplog.text
    train(["cpu"], n_iter=2, batch=2, checkpoint=path, resume=True, **then)
    (line,) = [r.getMessage() for r in caplog.records if "the checkpoint was made with" in r.getMessage()]
    made, has = line.split(", and the job has ")
    assert said[0] in made and said[1] in has and "goes on with these" in has


def test_another_kind_of_optimizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job"
    train(["cpu"], n_iter=2, checkpoint=path)
    with expect_error("AdamW for Adam", ag.CheckpointError, "another kind of optimizer", "optimizer_adamw"):
        train(["cpu"], n_iter=4, checkpoint=path, resume=True, optimizer=lambda p: ag.optimizer_adamw(p, lr=0.05))


def test_a_relative_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever directory the functions of the job change to."""
    for name in ("at the start", "later"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "at the start")
    train(["cpu"], n_iter=3, checkpoint="job", checkpoint_every=2, callback=lambda step: os.chdir(tmp_path / "later"))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")] == ["at the start/job"]


def test_a_schedule_whose_state_is_not_json_is_refused_at_once(tmp_path: Path) -> None:
    class Own(Halving):
        def state_dict(self) -> Any:
            return {"optimizer": self.optimizer}

        def load_state_dict(self, state: Any) -> None:
            pass

    steps: list[Any] = []
    with expect_error("dp_train with a schedule whose state is not JSON", TypeError, "the scheduler", "JSON"):
        train(["cpu"], scheduler=Own, checkpoint=tmp_path / "job", callback=steps.append)
    assert not steps


class Counting:
    """A callback with a state of numbers and arrays, which Ctrl-C may interrupt."""

    def __init__(self, interrupt: int = -1) -> None:
        self.steps: list[int] = []
        self.losses = np.zeros(0)
        self.interrupt = interrupt

    def __call__(self, step: ag.DPStep) -> None:
        if step.step == self.interrupt:
            raise KeyboardInterrupt
        self.steps.append(step.step)
        self.losses = np.append(self.losses, step.loss)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.losses = list(state["steps"]), state["losses"]


@pytest.mark.parametrize("interrupt", [1, 3, STEPS - 1])
def test_a_callbacks_state_is_kept_and_an_interrupted_call_is_made_again(interrupt: int, tmp_path: Path) -> None:
    """Every step's call comes once, and in order, also that of the last step."""
    path, first, then, last = tmp_path / "job", Counting(interrupt), Counting(), Counting()
    assert train(["cpu"], n_iter=STEPS, checkpoint=path, callback=first).interrupted
    assert first.steps == list(range(interrupt))
    result = train(["cpu"], n_iter=STEPS, checkpoint=path, resume=True, callback=then)
    assert then.steps == list(range(STEPS)) and np.array_equal(then.losses, result.loss_history)
    train(["cpu"], n_iter=STEPS, checkpoint=path, resume=True, callback=last)
    assert last.steps == list(range(STEPS))
