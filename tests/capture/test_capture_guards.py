"""Captured steps that cannot be recorded, and replays unlike what was recorded: each is refused with a reason."""

from __future__ import annotations

from collections import UserDict, UserList, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


def test_each_kind_of_call_has_a_program(device: str) -> None:
    """Another shape, type, kind or number of arguments is recorded for itself, and the older programs stay."""
    step = ag.ag_capture(lambda *xs: ag.ag_sum(sum(ag.ag_tensor(x) * 2.0 for x in xs)))
    calls = [(np.ones((2, 3)),), (np.ones((2, 4)),), (np.ones((2, 3), np.int64),), (ag.ag_tensor(np.ones((2, 3))),),
             (np.ones((2, 3)), np.ones((2, 3)))]
    for k in range(4):
        for call in calls:
            values = [x * float(k) if isinstance(x, ag.Tensor) else x * k for x in call]
            assert step(*values).item() == sum(2.0 * k * (8 if x.shape == (2, 4) else 6) for x in call)
    assert len(step._programs) == len(calls)


def test_programs_that_are_not_used_are_closed(device: str) -> None:
    step = ag.ag_capture(lambda x: ag.ag_sum(x + 1.0))
    for n in range(1, 40):
        assert step(ag.ag_tensor(np.ones((n, 2)))).item() == 4 * n
    assert len(step._programs) == 16


def test_another_mode(device: str) -> None:
    """The step is recorded for each mode, and goes back to the first program."""
    model = ag.ag_sequential(ag.ag_dropout(0.5))
    step = ag.ag_capture(lambda x: model(x) + 0.0)
    x = ag.ag_tensor(np.ones((64, 4)))
    for _ in range(4):
        ag.ag_train(model)
        assert 0.0 in step(x).numpy()
        ag.ag_eval(model)
        assert step(x).numpy().min() == 1.0
    assert len(step._programs) == 2


class Slotted:
    __slots__ = ("slope",)


class Plain:
    pass


@pytest.mark.parametrize(("kind", "within"), [(SimpleNamespace, "object"), (Plain, "list"), (Slotted, "nested")])
def test_an_object_of_a_layers_own_changes(kind: type, within: str) -> None:
    """It is read by way of the layer, which tells of its own attributes only."""
    options = kind()
    options.slope = 0.5

    class Own(ag.Layer):
        def __init__(self) -> None:
            self.options = {"object": options, "list": [options], "nested": SimpleNamespace(inner=options)}[within]

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return ag.ag_leaky_relu(x, slope_of(self))

    def slope_of(model: Own) -> float:
        found = model.options
        return found[0].slope if within == "list" else found.inner.slope if within == "nested" else found.slope

    model = Own()
    by_a_method = ag.ag_capture(lambda x: model(x) + 0.0)
    by_the_step = ag.ag_capture(lambda x: ag.ag_leaky_relu(x, slope_of(model)))
    for slope in (0.5, 0.25, 0.5, 0.75):
        options.slope = slope
        for k in range(3):
            x = ag.ag_tensor([-1.0 - k])
            assert by_a_method(x).item() == by_the_step(x).item() == -slope * (1 + k)


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


def test_an_array_that_is_no_argument(device: str) -> None:
    own = np.ones((2, 2))
    with expect_error("a captured step uses an array of its own", ag.CaptureError, "not one of its arguments"):
        ag.ag_capture(lambda a: ag.ag_tensor(a[:1]) + ag.ag_tensor(own[:1]))(np.ones((2, 2)))


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
    refused(lambda x: inner(x), "a captured step replayed inside another", "calls another captured step")
    fresh = ag.ag_capture(lambda x: x + x)
    refused(lambda x: fresh(x), "a step captured inside another", "calls another captured step")


def test_a_number_as_output(device: str) -> None:
    refused(lambda x: 3.0, "a captured step that returns a number", "returns a float")
    refused(lambda x: {"a": [x, x.shape]}, "a captured step that returns a shape", "returns a int")


class Pair(list):  # type: ignore[type-arg]
    """A list that is made of two things."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__([first, second])


def test_a_list_of_its_own_kind_as_output(device: str) -> None:
    refused(lambda x: Pair(x + x, x), "a captured step that returns a list of its own", "returns a Pair", "a dict")


@pytest.mark.parametrize(("make", "said"), [
    (lambda t: {1.0, 2.0}, "set"), (lambda t: [object()], "holds a object"),
    (lambda t: 2.0, "argument 1 is a float"), (lambda t: ag.ag_param(t), "parameter"),
    (lambda t: ag.ag_to_device(t, "cpu:1"), "cpu:1")],
    ids=["a set", "an object", "a number", "a parameter", "two devices"])
def test_what_is_no_argument(device: str, make: Callable[[ag.Tensor], object], said: str) -> None:
    x = ag.ag_tensor([1.0, 2.0])
    with expect_error("a captured step given what is no argument", ag.CaptureError, said):
        ag.ag_capture(lambda a, b: a)(x, make(x))


@pytest.mark.parametrize("use", [
    lambda model, x: ag.ag_cast(model.W, "bf16").astype("f32") * x,
    lambda model, x: model.W.detach() * x,
    lambda model, x: ag.ag_checkpoint(lambda: model.W) * x,
    lambda model, x: ag.DataParallel(model, [model.W.device])(x),
], ids=["cast", "detached", "checkpoint", "replica"])
def test_a_parameter_that_moved_is_seen(device: str, use: Callable[[Any, ag.Tensor], ag.Tensor]) -> None:
    """Also where what the step computes with is not the parameter itself."""
    model = ag.ag_linear(2, 2)
    step = ag.ag_capture(lambda x: ag.ag_sum(ag.with_grad_tape(lambda: use(model, x))))
    x = ag.ag_tensor(np.ones((2, 2)))
    model.W.data = np.ones((2, 2))
    assert [step(x).item() for _ in range(3)] == [step(x).item()] * 3
    optimizer = ag.optimizer_sgd({"W": model.W}, lr=1.0)
    optimizer.step({"W": np.full((2, 2), 3.0)})
    found, want = step(x), ag.ag_sum(ag.with_grad_tape(lambda: use(model, x)))
    assert found.item() == want.item() < 0


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


@pytest.mark.parametrize("make", [deque, UserList, lambda items: UserDict(enumerate(items))])
def test_containers_of_a_layer_change(make: Callable[[list[float]], Any]) -> None:
    class Own(ag.Layer):
        def __init__(self) -> None:
            self.slopes = make([0.5, 7.0])

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return ag.ag_leaky_relu(x, self.slopes[0])

    model = Own()
    step = ag.ag_capture(lambda x: model(x) + 0.0)
    for slope in (0.5, 0.25, 0.75):
        model.slopes[0] = slope
        for k in range(3):
            assert step(ag.ag_tensor([-1.0 - k])).item() == -slope * (1 + k)


def test_a_closed_step_is_captured_anew(device: str) -> None:
    step = ag.ag_capture(lambda x: x + x)
    step(ag.ag_tensor([1.0]))
    step.close()
    assert step.program is None
    assert step(ag.ag_tensor([1.0, 2.0])).numpy().ravel().tolist() == [2.0, 4.0]


def test_arguments_on_two_devices(device: str) -> None:
    with expect_error("a step captured with arguments on two devices", ag.CaptureError, "cpu:1", device):
        ag.ag_capture(lambda a, b: a)(ag.ag_tensor([1.0]), ag.ag_tensor([1.0], device="cpu:1"))
