"""Pipelines: the schedules as tables, and one executor whose gradients are those of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ag
from ag.parallel.sharded import pipeline as schedules
from ag.parallel.sharded.pipeline import Work

RNG = np.random.default_rng(41)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------------------------------- schedules


def most_at_once(orders: list[list[schedules.Work]]) -> list[int]:
    """Per stage, the largest number of micro-batches whose results it holds for the backward pass."""
    found = []
    for order in orders:
        held = most = 0
        for work in order:
            held += -1 if work.backward else 1
            most = max(most, held)
        found.append(most)
    return found


@given(st.sampled_from(list(schedules.SCHEDULES)), st.integers(1, 8), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_a_table_does_everything_once_and_in_order(kind: str, stages: int, micros: int) -> None:
    orders = schedules.SCHEDULES[kind](stages, micros)
    when: dict[tuple[int, Work], int] = {}
    for t, tick in enumerate(schedules.timetable(orders)):
        for stage, work in enumerate(tick):
            if work is not None:
                assert when.setdefault((stage, work), t) == t
    assert len(when) == 2 * stages * micros
    for m in range(micros):
        for s in range(stages - 1):
            assert when[s, Work(False, m)] < when[s + 1, Work(False, m)]
            assert when[s + 1, Work(True, m)] < when[s, Work(True, m)]
        assert when[stages - 1, Work(False, m)] < when[stages - 1, Work(True, m)]
    # 2 (stages - 1) ticks to fill and to empty the pipeline, which no schedule can save
    assert max(when.values()) + 1 == 2 * micros + 2 * (stages - 1)


@pytest.mark.parametrize(("stages", "micros"), [(1, 1), (4, 2), (4, 8), (3, 12)])
def test_how_many_micro_batches_a_stage_holds(stages: int, micros: int) -> None:
    assert most_at_once(schedules.gpipe(stages, micros)) == [micros] * stages
    assert most_at_once(schedules.one_forward_one_backward(stages, micros)) == [
        min(micros, stages - s) for s in range(stages)]


def test_tables_are_shown() -> None:
    assert schedules.shown(schedules.timetable(schedules.gpipe(2, 2))) == """\
stage 0  F0 F1  .  . B1 B0
stage 1   . F0 F1 B1 B0  ."""
    assert schedules.shown(schedules.timetable(schedules.one_forward_one_backward(3, 4))) == """\
stage 0  F0 F1 F2  .  . B0 F3 B1  . B2  . B3
stage 1   . F0 F1  . B0 F2 B1 F3 B2  . B3  .
stage 2   .  . F0 B0 F1 B1 F2 B2 F3 B3  .  ."""


def test_an_order_that_never_ends() -> None:
    forward, backward = Work(False, 0), Work(True, 0)
    with pytest.raises(ValueError, match="stage 0 for B0"):
        schedules.timetable([[backward, forward], [forward, backward]])


# ---------------------------------------------------------------------------------------------- the executor


class Split(ag.Layer):
    """Sends its input along beside its result: a connection that skips a stage."""

    def __init__(self) -> None:
        self.inner = ag.ag_linear(6, 6, activation="tanh")

    def forward(self, x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        return self.inner(x), x


class Middle(ag.Layer):
    def __init__(self) -> None:
        self.inner = ag.ag_linear(6, 6, activation="gelu")

    def forward(self, y: ag.Tensor, x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        return self.inner(y), x


class Join(ag.Layer):
    def __init__(self) -> None:
        self.inner = ag.ag_linear(6, 3)

    def forward(self, y: ag.Tensor, x: ag.Tensor) -> ag.Tensor:
        out: ag.Tensor = self.inner(y + x)
        return out


def plain(count: int) -> list[ag.Layer]:
    return [*(ag.ag_linear(6, 6, activation="tanh") for _ in range(count - 1)), ag.ag_linear(6, 3)]


def skipping() -> list[ag.Layer]:
    return [ag.ag_linear(6, 6), Split(), Middle(), Join()]


@pytest.fixture(params=["cpus", "one device", "two vendors"])
def places(request: pytest.FixtureRequest) -> Callable[[int], list[str]]:
    if request.param == "two vendors":
        pair = [request.getfixturevalue("lavapipe"), request.getfixturevalue("swiftshader")]
        return lambda count: [pair[i % 2] for i in range(count)]
    return lambda count: ["cpu" if request.param == "one device" or i == 0 else f"cpu:{i}" for i in range(count)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("make", [lambda: plain(1), lambda: plain(3), skipping], ids=["one", "three", "skip"])
@pytest.mark.parametrize(("batch", "micros"), [(7, 3), (3, 5)])
def test_gradients_of_the_unsplit_model(
    make: Callable[[], list[ag.Layer]], schedule: str, batch: int, micros: int, places: Callable[[int], list[str]]
) -> None:
    x, y = normal(6, batch), normal(3, batch)
    ag.ag_seed(1)
    with ag.ag_device("cpu"):
        stages = make()
        with ag.with_grad_tape():
            h: Any = (ag.ag_tensor(x),)
            for stage in stages:
                h = stage(*h)
                h = h if isinstance(h, tuple) else (h,)
            expected = ag.ag_mse_loss(h[0], ag.ag_tensor(y))
        ag.backward(expected)
        grads = [p.grad.numpy() for stage in stages for p in stage.parameters().values()]
    for p in (p for stage in stages for p in stage.parameters().values()):
        p.grad = None
    pipe = ag.Pipeline(stages, places(len(stages)), micros, schedule)
    with ag.ag_device(pipe.devices[0]):
        loss = pipe.step(ag.ag_tensor(x), ag.ag_tensor(y), ag.ag_mse_loss)
    assert loss.device == pipe.devices[-1] and loss.item() == pytest.approx(expected.item(), rel=1e-6)
    found = [p.grad for stage in stages for p in stage.parameters().values()]
    for g, wanted in zip(found, grads, strict=True):
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_a_forward_pass_and_class_numbers() -> None:
    pipe = ag.Pipeline(plain(2), ["cpu", "cpu:1"], 2)
    x = ag.ag_tensor(normal(6, 5))
    out = pipe(x)
    assert out.shape == (3, 5) and out.device == "cpu:1"
    loss = pipe.step(x, RNG.integers(0, 3, 5), ag.ag_softmax_cross_entropy_loss)
    assert np.isfinite(loss.item()) and pipe.parameters().keys() == pipe.state_dict().keys()


def test_stages_that_are_data_parallel() -> None:
    """Pipeline times data parallel."""
    x, y = normal(6, 8), normal(3, 8)

    def gradients(stages: list[Any]) -> list[Any]:
        pipe = ag.Pipeline(stages, micro_batches=2)
        pipe.step(ag.ag_tensor(x), ag.ag_tensor(y), ag.ag_mse_loss)
        return [p.grad.numpy() for p in pipe.parameters().values()]

    ag.ag_seed(6)
    expected = gradients(plain(2))
    ag.ag_seed(6)
    stages = [ag.DataParallel(stage, ["cpu", "cpu:1"]) for stage in plain(2)]
    for g, wanted in zip(gradients(stages), expected, strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: ag.Pipeline([]), ValueError, "there are 0 stages"),
    (lambda: ag.Pipeline(plain(2), ["cpu"]), ValueError, "a device for each"),
    (lambda: ag.Pipeline(plain(2), micro_batches=0), ValueError, "micro_batches is 0"),
    (lambda: ag.Pipeline(plain(2), schedule="zigzag"), ValueError, "gpipe, 1f1b"),
    (lambda: ag.Pipeline([ag.ag_dropout(0.1)]), ValueError, "pass devices"),
    (lambda: ag.Pipeline(plain(2)).step(ag.ag_tensor(normal(6, 2)), normal(3, 3), ag.ag_mse_loss), ag.ShapeError,
     "2 and 3 samples"),
    (lambda: ag.Pipeline(plain(2)).step(ag.ag_tensor(normal(6, 0)), normal(3, 0), ag.ag_mse_loss), ag.ShapeError,
     "0 samples"),
])
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
