"""Captured steps that cannot be recorded, and replays unlike what was recorded: each is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


@pytest.fixture
def doubled(device: str) -> ag.CapturedStep:
    """A captured step over a (2, 3) tensor and a (3,) array of integers."""
    step = ag.ag_capture(lambda x, ids: x * ag.ag_tensor(ids.reshape(1, 3)))
    step(ag.ag_tensor(np.ones((2, 3))), np.arange(3))
    return step


def test_another_number_of_arguments(doubled: ag.CapturedStep) -> None:
    with expect_error("a captured step called with another number of arguments", ag.CaptureError, "1 arguments", "2"):
        doubled(ag.ag_tensor(np.ones((2, 3))))


def test_another_kind_of_argument(doubled: ag.CapturedStep) -> None:
    with expect_error("a captured step given an array for a tensor", ag.CaptureError, "argument 0", "numpy array"):
        doubled(np.ones((2, 3)), np.arange(3))
    with expect_error("a captured step given a list instead of an array", ag.CaptureError, "argument 1", "list"):
        doubled(ag.ag_tensor(np.ones((2, 3))), [0, 1, 2])


def test_another_shape(doubled: ag.CapturedStep) -> None:
    with expect_error("a captured step given another shape", ag.CaptureError, "(2, 4)", "(2, 3)", "Capture another"):
        doubled(ag.ag_tensor(np.ones((2, 4))), np.arange(3))


def test_another_dtype(doubled: ag.CapturedStep) -> None:
    with expect_error("a captured step given another element type", ag.CaptureError, "float64", "int64"):
        doubled(ag.ag_tensor(np.ones((2, 3))), np.arange(3.0))
    assert doubled(ag.ag_tensor(np.ones((2, 3))), np.arange(3)).numpy().tolist() == [[0, 1, 2]] * 2


def test_another_mode(device: str) -> None:
    model = ag.ag_sequential(ag.ag_dropout(0.5))
    step = ag.ag_capture(lambda x: model(x))
    step(ag.ag_tensor([1.0]))
    ag.ag_eval(model)
    with expect_error("a step captured in train mode and called in eval mode", ag.CaptureError, "train", "eval"):
        step(ag.ag_tensor([1.0]))
    ag.ag_train(model)
    step(ag.ag_tensor([1.0]))


def test_a_closed_step_is_captured_anew(device: str) -> None:
    step = ag.ag_capture(lambda x: x + x)
    step(ag.ag_tensor([1.0]))
    step.close()
    assert step.program is None
    assert step(ag.ag_tensor([1.0, 2.0])).numpy().ravel().tolist() == [2.0, 4.0]


# ---------------------------------------------------------------------------------------------- refused steps


def refused(step: Callable[..., object], situation: str, *fragments: str) -> None:
    """Capturing `step` fails with that message, and leaves the device as usable as before."""
    x = ag.ag_tensor([[1.0, 2.0]])
    with expect_error(situation, ag.CaptureError, *fragments):
        ag.ag_capture(step)(x)
    assert x.buffer.backend.recording is None
    assert ag.ag_capture(lambda x: x + x)(x).numpy().tolist() == [[2.0, 4.0]]


def test_reading_on_the_host(device: str) -> None:
    refused(lambda x: x * ag.ag_sum(x).item(), "item() inside a captured step", "reads a tensor on the host", device)
    refused(lambda x: ag.ag_tensor(x.numpy()), "numpy() inside a captured step", "reads a tensor on the host")


def test_making_a_parameter(device: str) -> None:
    refused(lambda x: ag.ag_param([[1.0]]) * x, "ag_param inside a captured step", "ag_param", "before the step")


def test_uploading_a_foreign_array(device: str) -> None:
    other = np.ones((1, 2))
    refused(lambda x: x * ag.ag_tensor(other), "a captured step uses an array that is no argument",
            "(1, 2)", "Pass it as an argument")


def test_a_part_of_an_argument_is_foreign(device: str) -> None:
    with expect_error("a captured step uses a part of an array argument", ag.CaptureError, "not one of its arguments"):
        ag.ag_capture(lambda a: ag.ag_tensor(a[:1]))(np.ones((2, 2)))


def test_assigning_data(device: str) -> None:
    W = ag.ag_param([[1.0, 1.0]])

    def step(x: ag.Tensor) -> ag.Tensor:
        W.data = [[5.0, 5.0]]
        return x * W

    refused(step, "assigning .data inside a captured step", "assigns to a tensor's data")
    assert W.numpy().tolist() == [[1.0, 1.0]]


def test_setting_lr(device: str) -> None:
    optimizer = ag.optimizer_adam([ag.ag_param([[1.0]])], lr=0.5)

    def step(x: ag.Tensor) -> ag.Tensor:
        optimizer.lr = 0.1
        return x

    refused(step, "setting lr inside a captured step", "lr")
    assert optimizer.lr == 0.5


def test_nesting(device: str) -> None:
    inner = ag.ag_capture(lambda x: x + x)
    inner(ag.ag_tensor([[1.0, 2.0]]))
    refused(lambda x: inner(x), "a captured step replayed inside another", "replays another captured step")
    fresh = ag.ag_capture(lambda x: x + x)
    refused(lambda x: fresh(x), "a step captured inside another", "another captured step for the first time")


def test_a_number_as_output(device: str) -> None:
    refused(lambda x: 3.0, "a captured step that returns a number", "returns a float")
    refused(lambda x: {"a": [x, x.shape]}, "a captured step that returns a shape", "returns a int")


def test_a_number_as_argument(device: str) -> None:
    with expect_error("a captured step given a Python number", ag.CaptureError, "argument 1 is a float", "closure"):
        ag.ag_capture(lambda x, s: x * s)(ag.ag_tensor([1.0]), 2.0)


def test_a_parameter_as_argument(device: str) -> None:
    with expect_error("a captured step given a parameter", ag.CaptureError, "argument 0", "parameter", "closure"):
        ag.ag_capture(lambda W, x: W * x)(ag.ag_param([1.0]), ag.ag_tensor([1.0]))


def test_arguments_on_two_devices(device: str) -> None:
    with expect_error("a step captured with arguments on two devices", ag.CaptureError, "cpu:1", device):
        ag.ag_capture(lambda a, b: a)(ag.ag_tensor([1.0]), ag.ag_tensor([1.0], device="cpu:1"))


def test_an_exception_in_the_step_comes_through(device: str) -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        y = x + x
        raise KeyError(f"own error with {y.shape}")

    captured = ag.ag_capture(step)
    x = ag.ag_tensor([[1.0, 2.0]])
    for _ in range(2):
        with expect_error("an exception in a step while it is captured", KeyError, "own error"):
            captured(x)
        assert x.buffer.backend.recording is None
        assert (x + x).numpy().tolist() == [[2.0, 4.0]]
