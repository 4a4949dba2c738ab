"""dp_train: which samples a step has, in which order, and from where; the size of a step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal, places
from helpers.dp_linear import DATA, make_model
from helpers.errors import expect_error

import ag

NUMBERED = [np.full((1, 1), float(i), np.float32) for i in range(10)]


def seen(data: Any = NUMBERED, **options: Any) -> list[int]:
    """The samples in the order in which one replica has passed them, after the one that is tried first."""
    order: list[int] = []

    def forward(model: Any, sample: Any) -> ag.Tensor:
        order.append(int(np.ravel(sample)[0]))
        return model(sample)

    settings = {"devices": ["cpu"], "n_iter": 5, "batch": 4, "seed": 3, "capture": False, "verbose": False}
    ag.dp_train(lambda: ag.ag_linear(1, 1), data, ag.ag_mse_loss, forward, **{**settings, **options})
    return order


def train(devices: list[str], data: Any = DATA, **options: Any) -> ag.DPResult:
    settings = {"batch": 8, "n_iter": 6, "lr": 0.05, "seed": 4, "verbose": False, "forward_fn": lambda m, s: m(s[0]),
                "target_fn": lambda s: s[1]}
    return ag.dp_train(make_model, data, ag.ag_mse_loss, devices=devices, **{**settings, **options})


def test_every_pass_has_every_sample_once_in_an_order_of_its_own() -> None:
    order = seen(n_iter=10)
    passes = [order[i : i + 10] for i in range(0, 40, 10)]
    assert [sorted(p) for p in passes] == [list(range(10))] * 4
    assert len({tuple(p) for p in passes}) == 4
    assert seen(n_iter=10) == order and seen(n_iter=10, seed=4) != order


def test_the_order_depends_on_seed_and_pass_alone() -> None:
    assert seen(batch=2, n_iter=10) == seen(batch=5, n_iter=4) == seen(batch=1, n_iter=20)


def test_without_shuffling_samples_come_in_their_order() -> None:
    assert seen(shuffle=False) == [k % 10 for k in range(20)]


@pytest.mark.parametrize("stack", [1, 2])
def test_shuffled_steps_go_on_after_a_resume(device: str, stack: int, tmp_path: Path) -> None:
    one = train(places(device, 1), stack=stack)
    path = tmp_path / "job"
    train(places(device, 2), stack=stack, n_iter=2, checkpoint=path)  # in the middle of the second pass
    assert_equal(train(places(device, 4), stack=stack, checkpoint=path, resume=True), one)


def test_a_job_resumes_with_the_stacks_and_the_order_that_it_had(tmp_path: Path,
                                                                 caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "job"
    options: dict[str, Any] = {"batch": None, "micro_batch": 4}
    one = train(places("cpu", 2), **options)
    train(places("cpu", 2), **options, n_iter=2, checkpoint=path)
    other = {**options, "micro_batch": 8}
    assert_equal(train(["cpu"], **other, checkpoint=path, resume=True), one)
    train(["cpu"], **other, n_iter=2, checkpoint=path)
    for changed in ({"shuffle": False}, {"stack": 2}):
        with expect_error(f"dp_train(resume=True) with {changed}", ag.CheckpointError, "shuffle=True, stack=8"):
            train(["cpu"], **other, **changed, checkpoint=path, resume=True)
    caplog.clear()
    train(["cpu"], DATA[:10], **other, checkpoint=path, resume=True, seed=5)
    assert "12 samples and there are 10" in caplog.text and "seed is 5" in caplog.text


@pytest.mark.parametrize("seed", [5, None])
def test_what_is_drawn_after_a_job_does_not_depend_on_its_replicas(device: str, seed: int | None) -> None:
    drawn = []
    for n in (1, 3):
        ag.ag_seed(9)
        train(places(device, n), seed=seed)
        mask = ag.ag_dropout(0.5)(ag.ag_tensor(np.ones((8, 8)), device)).numpy()
        drawn.append((mask.tobytes(), ag.ag_linear(3, 3).W.numpy().tobytes()))
        train(places(device, 1), seed=None)  # nor is it drawn again
        drawn[-1] += (ag.ag_linear(3, 3).W.numpy().tobytes(),)
    assert drawn[0] == drawn[1] and drawn[0][1] != drawn[0][2]


# ---------------------------------------------------------------------------------------------- the size of a step


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_step_has_batch_samples_whatever_the_replicas(replicas: int) -> None:
    result = train(places("cpu", replicas), batch=7, n_iter=2)
    assert sum(row["samples"] for row in result.report) == 14
    assert_equal(result, train(["cpu"], batch=7, n_iter=2))


def test_batch_and_accumulate() -> None:
    assert_equal(train(["cpu"], batch=8, micro_batch=2, accumulate=4), train(["cpu"], batch=8, stack=2))
    with expect_error("dp_train(batch=8, accumulate=3)", ValueError, "batch is 8", "accumulate=3", "3 samples"):
        train(["cpu"], batch=8, accumulate=3)


def test_a_batch_larger_than_the_data_is_all_of_them(caplog: pytest.LogCaptureFixture) -> None:
    assert_equal(train(["cpu"], batch=50), train(["cpu"], batch=12))
    assert "batch is 50 and there are 12 samples" in caplog.text


# ---------------------------------------------------------------------------------------------- data


def test_a_loader_is_data() -> None:
    x, y = np.concatenate([s[0] for s in DATA], 1), np.concatenate([s[1] for s in DATA], 1)
    loader = ag.ag_dataloader(x, y, batch_size=4)
    whole = train(["cpu"], batch=None, micro_batch=4)
    assert_equal(train(["cpu"], loader, batch=None), whole)
    assert_equal(train(["cpu"], loader, batch=None, forward_fn=None, target_fn=None), whole)
    named = {"forward_fn": lambda m, s: m(s.x), "target_fn": lambda s: s.y}
    assert_equal(train(["cpu"], loader, batch=4, stack=4, **named), whole)
    ordered = ag.ag_dataloader(x, y, batch_size=4, shuffle=False)
    assert_equal(train(["cpu"], ordered, batch=None), train(["cpu"], batch=4, stack=4, shuffle=False))


def test_a_loader_of_numbers_and_ids() -> None:
    loader = ag.ag_dataloader(np.arange(8.0), np.arange(8) % 2, batch_size=4)
    result = ag.dp_train(lambda: ag.ag_linear(1, 2), loader, ag.ag_softmax_cross_entropy_loss, devices=["cpu"],
                         n_iter=3, seed=1, verbose=False)
    assert np.isfinite(result.loss_history).all() and result.report[0]["shard"] == 4


class Made:
    """A sequence that makes its samples when asked for them."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, i: int) -> Any:
        if i >= len(DATA):
            raise IndexError(i)
        return tuple(x.copy() for x in DATA[i])


def test_samples_that_are_made_are_as_good() -> None:
    assert_equal(train(["cpu"], Made(), micro_batch=4), train(["cpu"], micro_batch=4))


def test_what_is_no_data() -> None:
    x, y = np.zeros((4, 12)), np.zeros(12)
    for data in ((s for s in DATA), {0: DATA[0]}, {1, 2}, "text", 3, None, np.float32(1), iter(DATA)):
        with expect_error(f"dp_train with data of type {type(data).__name__}", TypeError, "data is a",
                          type(data).__name__, "len(data)"):
            train(["cpu"], data)
    with expect_error("dp_train with a pair of arrays as data", ValueError, "(4, 12)", "(12,)", "ag_dataloader(x, y)"):
        train(["cpu"], (x, y))


def test_a_job_says_nothing_of_what_is_usual(caplog: pytest.LogCaptureFixture) -> None:
    train(["cpu", "cpu:1"], batch=None, micro_batch=3)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_data_that_a_callback_shortens() -> None:
    data = [np.ones((2, 1)) for _ in range(8)]
    with expect_error("shortened data", IndexError, "dp_train: sample 4", "4 samples", "were 8", "leave data"):
        ag.dp_train(lambda: ag.ag_linear(2, 2), data, ag.ag_mse_loss, n_iter=8, shuffle=False, devices=["cpu"],
                    verbose=False, callback=lambda step: data.__delitem__(slice(4, None)))
