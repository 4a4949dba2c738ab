"""dp_train(world=...) when ranks do not fit together, or one fails: all of them raise, at the same step, in time."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.ranks import dealt, outcomes, train

import ag
from ag.parallel.comm.comm import Comm
from ag.parallel.trainer.replicas import Ranks
from ag.parallel.trainer.trainer import Trainer

RNG = np.random.default_rng(59)
DATA = [(RNG.standard_normal((4, 1)).astype(np.float32), np.array([i % 3])) for i in range(12)]

# ---------------------------------------------------------------------------------------------- before the first step


def linear(bias: bool = True, size: int = 3, dtype: str = "f32", names: str = "Wb") -> Any:
    class Named(ag.Layer):
        def __init__(self) -> None:
            self.__dict__[names[0]] = ag.ag_param(np.ones((size, 4)), dtype=dtype)
            if bias:
                self.__dict__[names[1]] = ag.ag_param(np.ones((3, 1)), dtype=dtype)

        def forward(self, x: Any) -> Any:
            raise AssertionError("nothing may be computed")

    return Named


@pytest.mark.parametrize(("other", "options", "said"), [
    ("n_iter", {"n_iter": 5}, "n_iter is 4 on rank 0 and 5 on rank 1"),
    ("data", {"data": DATA[:9]}, "len(data) is 12 on rank 0 and 9 on rank 1"),
    ("micro_batch", {"micro_batch": 1}, "samples per replica is 2 on rank 0 and 1 on rank 1"),
    ("on_nonfinite", {"on_nonfinite": "skip"}, "on_nonfinite is raise on rank 0 and skip on rank 1"),
    ("max_norm", {"max_norm": 1.0}, "max_norm is inf on rank 0 and 1.0 on rank 1"),
    ("resume", {"resume": True, "checkpoint": "no file"}, "resume is False on rank 0 and True on rank 1"),
    ("shapes", {"make_model": linear(size=5)}, "parameter 0 is W (3, 4) f32 on rank 0 and W (5, 4) f32 on rank 1"),
    ("types", {"make_model": linear(dtype="f16")}, "parameter 0 is W (3, 4) f32 on rank 0 and W (3, 4) f16 on rank 1"),
    ("names", {"make_model": linear(names="Wc")}, "parameter 1 is b (3, 1) f32 on rank 0 and c (3, 1) f32 on rank 1"),
    ("order", {"make_model": linear(names="bW")}, "parameter 0 is W (3, 4) f32 on rank 0 and b (3, 4) f32 on rank 1"),
    ("parameters", {"make_model": linear(bias=False)}, "parameter 1 is b (3, 1) f32 on rank 0 and not there on rank 1"),
    ("devices", {"devices": ["cpu"]}, "rank 0 and rank 1 are threads of one process and both use cpu"),
])
def test_the_first_difference_is_named(other: str, options: dict[str, Any], said: str) -> None:
    alike = {"make_model": linear(), "data": DATA, "capture": False}
    found = outcomes(2, lambda comm: train(world=comm, **{"devices": [f"cpu:{comm.rank}" if comm.rank else "cpu"],
                                                         **alike, **(options if comm.rank else {})}))
    for error in found:
        with expect_error(f"dp_train on two ranks, the second with other {other}", ag.CommError, said):
            raise error


def test_another_version_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = Ranks.compare

    def older(self: Ranks, named: Any, advice: str) -> None:
        old = [(what, "0.0.1" if "version" in what and self.rank == 1 else value) for what, value in named]
        compare(self, old, advice)

    monkeypatch.setattr(Ranks, "compare", older)
    for error in outcomes(2, lambda comm: train([f"cpu:{comm.rank}"], comm)):
        with expect_error("dp_train on ranks with two versions of ag", ag.CommError,
                          f"the library's version is {ag.__version__} on rank 0 and 0.0.1 on rank 1"):
            raise error


def test_batch_norm_over_all_ranks_is_refused() -> None:
    for error in outcomes(2, lambda comm: train([f"cpu:{comm.rank}"], comm, sync_batch_norm=True)):
        with expect_error("dp_train(sync_batch_norm=True, world=...)", ValueError, "a world of 2 ranks", "one rank"):
            raise error


@pytest.mark.parametrize(("path", "devices", "own", "said"), [
    (None, ["tpu"], ag.DeviceError, "(DeviceError: "), ("file", ["cpu"], ag.CheckpointError, "(CheckpointError"),
    ("no folder/job", ["cpu"], OSError, "(Unwritable")], ids=["its device", "a file to read", "a file to write"])
def test_a_rank_that_cannot_begin_is_named(path: str | None, devices: list[str], own: type[Exception], said: str,
                                           tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nothing")
    options = {"checkpoint": path and tmp_path / path, "resume": path == "file"}
    mine, others = outcomes(2, lambda comm: train([devices, ["cpu:1"]][comm.rank], comm, **options))
    assert isinstance(mine, own)
    with expect_error("dp_train on a rank that cannot begin, for the others", ag.CommError,
                      "rank 0 failed before step 0 ", said):
        raise others


# ---------------------------------------------------------------------------------------------- in a step


class Fault:
    """Something that happens on one rank of several, at its first sample of one step."""

    def __init__(self, rank: int, step: int, what: Callable[[], Any]) -> None:
        self.rank, self.step, self._what = rank, step, what
        self.weights: dict[int, list[Any]] = {}  # by rank, what they were after each step
        self.models: dict[int, Any] = {}

    def train(self, comm: Comm, devices: list[list[str]], **options: Any) -> ag.DPResult:
        weights = self.weights[comm.rank] = []

        def make() -> Any:
            with ag.ag_device(ag.ag_default_device()):
                self.models[comm.rank] = ag.ag_sequential(ag.ag_linear(4, 5, activation="tanh"), ag.ag_linear(5, 3))
            return self.models[comm.rank]

        def forward(model: Any, sample: Any) -> Any:
            x = sample[0]
            if (comm.rank, len(weights)) == (self.rank, self.step):
                x = x * np.float32(self._what())
            return model(x)

        def after(step: ag.DPStep) -> None:
            weights.append(flat(step.models[-1]))

        settings = {"micro_batch": 2, "n_iter": 5, "lr": 0.05, "seed": 4, "verbose": False, "capture": False}
        return ag.dp_train(make, DATA, ag.ag_softmax_cross_entropy_loss, forward, lambda s: s[1], callback=after,
                           devices=devices[comm.rank], world=comm, **{**settings, **options})


def flat(model: Any) -> Any:
    return np.concatenate([p.numpy().reshape(-1) for p in model.parameters().values()])


def interrupt() -> Any:
    raise KeyboardInterrupt


PLACES = dealt(3, 2)


@pytest.mark.parametrize(("rank", "step"), [(0, 0), (1, 2), (2, 2)])
@pytest.mark.parametrize(("what", "own", "said"), [
    (partial(int, "own error"), ValueError, r"rank {rank} failed in step {step} \(ValueError: invalid literal"),
    (lambda: np.nan, FloatingPointError, r"rank {rank} failed in step {step} \(FloatingPointError: dp_train: .* is "
                                         r"not finite on replica 0 .* in step {step}"),
    (interrupt, KeyboardInterrupt, r"in step {step}: the group was ended by rank {rank}: .*KeyboardInterrupt"),
], ids=["error", "nan", "interrupt"])
def test_a_rank_that_fails_stops_all(what: Any, own: type[BaseException], said: str, step: int, rank: int) -> None:
    fault = Fault(rank, step, what)
    found = outcomes(3, lambda comm: fault.train(comm, PLACES))
    for i, error in enumerate(found):
        if i == rank:
            assert type(error) is own, error
        else:
            assert type(error) is ag.CommError and re.search(said.format(rank=rank, step=step), str(error)), error
            assert "weights are those of the last step" in str(error)
    for i in range(3):
        assert len(fault.weights[i]) == step
        assert np.array_equal(flat(fault.models[i]), undisturbed(step)), f"rank {i} has other weights"


@cache
def undisturbed(steps: int) -> Any:
    """Return the weights after so many steps."""
    still = Fault(-1, -1, int)
    outcomes(3, lambda comm: still.train(comm, PLACES, n_iter=steps))
    return flat(still.models[0])


def test_skip_leaves_the_step_out_on_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    fault = Fault(1, 2, lambda: np.nan)
    found = outcomes(3, lambda comm: fault.train(comm, dealt(3, 1), on_nonfinite="skip"))
    for rank, result in enumerate(found):
        assert np.isnan(result.loss_history).tolist() == [False, False, True, False, False]
        weights = fault.weights[rank]
        assert np.array_equal(weights[2], weights[1]) and not np.array_equal(weights[3], weights[2])
        assert all(np.array_equal(a, b) for a, b in zip(weights, fault.weights[0], strict=True))
    (record,) = caplog.records
    assert "replica 0 (cpu:1) in step 2" in record.getMessage()


def test_the_group_can_be_used_after_an_error() -> None:
    """Nobody ended it: the ranks agreed to stop."""
    fault = Fault(1, 1, partial(int, "own error"))

    def work(comm: Comm) -> Any:
        with pytest.raises((ValueError, ag.CommError)):
            fault.train(comm, dealt(2, 1))
        return train([f"cpu:{comm.rank}"], comm)

    first, second = outcomes(2, work)
    assert np.array_equal(first.loss_history, second.loss_history)


@pytest.mark.vulkan
def test_an_error_on_one_of_two_vendors(lavapipe: str, swiftshader: str) -> None:
    fault = Fault(1, 2, partial(int, "own error"))
    first, second = outcomes(2, lambda comm: fault.train(comm, [[lavapipe], [swiftshader]]))
    assert isinstance(second, ValueError)
    with expect_error("a rank of dp_train fails, for the others", ag.CommError, "rank 1 failed in step 2 (ValueError"):
        raise first
    assert np.array_equal(flat(fault.models[0]), flat(fault.models[1]))
    assert np.array_equal(flat(fault.models[0]), fault.weights[0][-1])


def test_a_rank_that_hangs_is_named_in_time() -> None:
    """It goes on only when the others are through."""
    done, released, in_time = [], Event(), []
    fault = Fault(1, 2, lambda: in_time.append(released.wait(60)) or 1.0)

    def work(comm: Comm) -> Any:
        try:
            return fault.train(comm, dealt(3, 1))
        finally:
            done.append(comm.rank)
            if len(done) == 2:
                released.set()

    found = outcomes(3, work, timeout=1.0)
    assert all(in_time) and done[2] == 1
    for error in found:
        with expect_error("a rank of dp_train hangs", ag.CommError, "in step 2", "rank 1 did not come within 1 s"):
            raise error


def test_a_device_that_hangs_is_told_to_the_other_ranks() -> None:
    released = Event()
    fault = Fault(1, 1, lambda: released.wait(60))
    found = outcomes(2, lambda comm: fault.train(comm, dealt(2, 2), timeout=1.0))
    released.set()
    with expect_error("a device of another rank of dp_train hangs", ag.CommError, "rank 1 failed in step 1 (CommError",
                      "replica 0 (cpu:2) did not finish"):
        raise found[0]
    assert "replica 0 (cpu:2) did not finish" in str(found[1])


# ---------------------------------------------------------------------------------------------- between steps


def test_an_error_in_a_callback() -> None:
    def after(step: ag.DPStep) -> None:
        if step.step == 2 and step.models[0].parameters()["layer1_W"].device == "cpu":
            raise KeyError("own callback")

    first, second = outcomes(2, lambda comm: train(dealt(2, 1)[comm.rank], comm, callback=after))
    assert isinstance(first, KeyError)
    with expect_error("the callback of a rank of dp_train fails, for the others", ag.CommError,
                      "rank 0 failed after step 2 (KeyError"):
        raise second


def test_an_error_after_the_job_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Trainer) -> Any:
        if self.replicas.first.device == "cpu":
            raise KeyError("own report")
        return []

    monkeypatch.setattr(Trainer, "report", broken)

    def work(comm: Comm) -> int:
        with pytest.raises(KeyError, match="own report") if comm.rank == 0 else nullcontext():
            train(dealt(2, 1)[comm.rank], comm)
        comm.barrier()  # the group is as good as new
        return comm.rank

    assert outcomes(2, work, timeout=5) == [0, 1]


def test_a_rank_whose_weights_differ_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ag.parallel.trainer.trainer.CHECK_EVERY", 2)
    found = outcomes(2, lambda comm: train([f"cpu:{comm.rank}"], comm,
                                           optimizer=lambda p: ag.optimizer_sgd(p, lr=[0.1, 0.2][comm.rank])))
    for error in found:
        with expect_error("the ranks of dp_train have other weights", ag.CommError, "the SHA-256 of the weights is",
                          "on rank 1", "optimizer"):
            raise error


def test_an_error_while_values_are_exchanged_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody can know how far the others are."""
    exchange, steps = Comm.all_to_all, iter(range(9))

    def broken(self: Comm, rows: Any) -> Any:
        if self.rank == 1 and next(steps) == 1:
            raise MemoryError("own memory")
        return exchange(self, rows)

    monkeypatch.setattr(Comm, "all_to_all", broken)
    found = outcomes(3, lambda comm: train([f"cpu:{comm.rank}"], comm))
    assert isinstance(found[1], MemoryError)
    for error in (found[0], found[2]):
        with expect_error("a rank of dp_train fails while values are exchanged", ag.CommError, "in step 1",
                          "ended by rank 1", "MemoryError: own memory"):
            raise error
