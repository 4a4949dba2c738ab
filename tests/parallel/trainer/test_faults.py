"""One replica of dp_train fails, is slow, makes NaN, hangs or dies: a named error, no deadlock, nothing lost.

A device that is lost is in test_faults.
"""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal
from helpers.errors import expect_error

import ag
from ag.parallel.trainer.replica import Replica

RNG = np.random.default_rng(17)
DATA = [(RNG.standard_normal((3, 2)).astype(np.float32), RNG.standard_normal((2, 2)).astype(np.float32))
        for _ in range(12)]
STEPS = 3


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(3, 4), ag.ag_batch_norm(4), ag.ag_dropout(0.2), ag.ag_linear(4, 2))


class Fault:
    """Something that happens at one sample of one step."""

    def __init__(self, kind: str, step: int, sample: int) -> None:
        self.kind, self._step, self._sample = kind, step, sample
        self.step = 0
        self.released = threading.Event()

    def forward(self, model: Any, sample: Any) -> Any:
        x = sample[0]
        if self.step == self._step and x is DATA[self._sample][0]:
            if self.kind == "error":
                raise KeyError("own error")
            if self.kind == "dies":
                raise SystemExit(3)
            if self.kind == "hangs":
                self.released.wait(60)
            if self.kind == "slow":
                time.sleep(0.01)
            if self.kind in ("nan", "skipped nan"):
                x = np.full_like(x, np.nan)
        return model(x)

    def after(self, step: ag.DPStep) -> None:
        self.step = step.step + 1


def train(n: int, fault: Fault | None, together: bool, **options: Any) -> ag.DPResult:
    fault = fault or Fault("none", -1, 0)
    settings = {"devices": [f"cpu:{i}" for i in range(n)], "n_iter": STEPS, "lr": 0.01, "seed": 9, "verbose": False,
                "micro_batch": 6 // n, "capture": False, "stack": 1, "shuffle": False}
    return ag.dp_train(make_model, DATA, ag.ag_mse_loss, fault.forward, lambda s: s[1], callback=fault.after,
                       sync_batch_norm=together, **{**settings, **options})


@lru_cache
def undisturbed(together: bool) -> ag.DPResult:
    return train(1, None, together)


def no_thread_is_left() -> None:
    for thread in threading.enumerate():
        if thread.name == "ag_replica (left behind)":
            thread.join(20)
            assert not thread.is_alive(), "a thread of a replica does not end"


ERRORS: dict[str, type[BaseException]] = {"error": KeyError, "dies": SystemExit, "nan": FloatingPointError,
                                          "hangs": ag.CommError}


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 24))])
def test_200_random_faults(part: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Eight or nine in each part.  A job that failed goes on from its checkpoint to the bit."""
    random = np.random.default_rng(part)
    kinds = ["error"] * 7 + ["dies"] * 5 + ["nan"] * 4 + ["skipped nan"] * 3 + ["slow"] * 4 + ["hangs"] * 2
    for i, kind in enumerate(kinds[part % 3 :: 3]):
        n, again = (int(x) for x in random.choice([1, 2, 3], 2))
        n = max(n, 2) if kind == "hangs" else n  # one device has nobody who could tell
        step, position = int(random.integers(STEPS)), int(random.integers(6))
        together = bool(random.integers(2))
        fault = Fault(kind, step, (6 * step + position) % 12)
        path = tmp_path / f"{i}.safetensors"
        options: dict[str, Any] = {"checkpoint": path, "checkpoint_every": 1}
        options |= {"timeout": 0.6} if kind == "hangs" else {}
        options |= {"on_nonfinite": "skip"} if kind == "skipped nan" else {}
        said = f"{kind} at sample {position} of step {step}, {n} then {again} replicas, together={together}"
        if kind in ERRORS:
            with pytest.raises(ERRORS[kind]) as caught:
                train(n, fault, together, **options)
            fault.released.set()
            no_thread_is_left()  # the device is not to be used before the call has returned
            who = f"replica {position // (6 // n)} (cpu"
            words = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
            if kind != "nan" or not together:  # a NaN in the statistics is everybody's
                assert who in words, f"{said}: {words}"
            assert f"step {step}" in words and "as before" in words, f"{said}: {words}"
            assert_equal(train(again, None, together, checkpoint=path, resume=True), undisturbed(together))
        else:
            result = train(n, fault, together, **options)
            if kind == "slow":
                assert_equal(result, undisturbed(together))
            else:
                assert np.isnan(result.loss_history).tolist() == [k == step for k in range(STEPS)], said
                assert all(np.isfinite(p.numpy()).all() for p in result.params.values()), said


@pytest.mark.parametrize("replica, device", [(0, "cpu"), (1, "cpu:1")])
def test_a_replica_that_hangs_after_replays_is_named(replica: int, device: str) -> None:
    """The function runs again, as what it reads has changed, and it does so in a thread that may be left behind."""
    go = threading.Event()

    class Model(ag.Layer):
        waits = False

        def __init__(self) -> None:
            super().__init__()
            self.linear = ag.ag_linear(3, 2)

        def forward(self, x: Any) -> Any:
            if self.waits and x.device == device:
                go.wait(60)
            return self.linear(x)

    def callback(step: ag.DPStep) -> None:
        if step.step == 20:
            for model in step.models:
                model.waits = True

    with expect_error("dp_train with a device that does not finish its part after replays", ag.CommError,
                      f"replica {replica} ({device})", "step 21", "within 1 s"):
        ag.dp_train(Model, DATA, ag.ag_mse_loss, lambda m, s: m(ag.ag_tensor(s[0])), lambda s: s[1],
                    devices=["cpu", "cpu:1"], n_iter=30, verbose=False, callback=callback, timeout=1.0)
    go.set()
    no_thread_is_left()


def test_weights_that_differ_are_found_during_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer that goes wrong: found at the next check, not only at the end."""
    load = Replica.load

    def wrong(self: Replica, weights: Any, buffers: Any) -> None:
        load(self, weights, buffers)
        if self.index == 1:
            self.backend.upload(self.backend.download(self.group.values) * 1.01, self.group.values)

    monkeypatch.setattr(Replica, "load", wrong)
    monkeypatch.setattr("ag.parallel.trainer.trainer.CHECK_EVERY", 2)
    steps: list[int] = []
    with expect_error("dp_train with a device to which transfers are wrong", ag.CommError, "replica 1 (cpu:1)",
                      "SHA-256", "transfer"):
        ag.dp_train(make_model, DATA, ag.ag_mse_loss, lambda m, s: m(s[0]), lambda s: s[1], devices=["cpu", "cpu:1"],
                    n_iter=9, verbose=False, callback=lambda step: steps.append(step.step))
    assert steps == [0]
