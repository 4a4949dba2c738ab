"""Steps that fail leave what the eager call would leave; a refusal that a step catches is not forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag


def bad_batch(device: str, captured: bool) -> list[Any]:
    """Losses of ten batches, of which the sixth has a label out of range: its first update is made."""
    ag.ag_seed(1)
    model = ag.ag_sequential(ag.ag_linear(3, 8, activation="tanh"), ag.ag_dropout(0.2), ag.ag_linear(8, 2))
    optimizer = ag.optimizer_adam(model, lr=0.1)

    def step(x: Any, y: Any) -> ag.Tensor:
        for loss_of in (lambda h: ag.ag_mean(h * h), lambda h: ag.ag_softmax_cross_entropy_loss(h, y)):
            with ag.with_grad_tape():
                loss = loss_of(model(x))
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
        return loss

    call, rng, found = ag.ag_capture(step) if captured else step, np.random.default_rng(0), list[Any]()
    for i in range(10):
        x, y = rng.normal(size=(3, 6)).astype("f"), rng.integers(0, 2, 6)
        y[0] = 7 if i == 5 else y[0]
        try:
            found.append(call(x, y).item())
        except IndexError as error:
            found.append(str(error))
    return [*found, *(p.numpy().tolist() for p in model.parameters().values())]


def test_a_label_out_of_range_in_a_later_call(device: str) -> None:
    with ag.ag_device(device):
        expected = bad_batch(device, False)
        assert isinstance(expected[5], str)
        assert bad_batch(device, True) == expected


def bad_first_batch(captured: bool) -> Any:
    p = ag.ag_param(np.ones((2, 3)))
    optimizer = ag.optimizer_sgd({"p": p}, lr=0.5)

    def step(x: Any, y: Any) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_sum(p * x)
        optimizer.step(ag.backward(loss))
        return ag.ag_softmax_cross_entropy_loss(p, y)

    with pytest.raises(IndexError):
        (ag.ag_capture(step) if captured else step)(np.full((2, 3), 2.0, "f"), np.array([0, 7, 1]))
    return p.numpy().tolist()


def test_the_same_label_in_the_first_call(device: str) -> None:
    with ag.ag_device(device):
        assert bad_first_batch(True) == bad_first_batch(False)


REFUSED: dict[str, Callable[[Any], float]] = {
    "reads an argument": lambda x: float(np.abs(x).max()),
    "reads a result": lambda x: (ag.ag_tensor([1.0]) * ag.ag_sum(x)).item(),
    "uploads": lambda x: ag.ag_tensor(np.full((3, 3), 2.0, "f")).shape[0] + 1.0,
}


@pytest.mark.parametrize("refused", REFUSED)
def test_a_refusal_that_the_step_catches(device: str, refused: str) -> None:
    def step(x: Any) -> ag.Tensor:
        try:
            peak = REFUSED[refused](x)
        except Exception:  # noqa: BLE001 - as users write it
            peak = 1.0
        return ag.ag_sum(x) * (1.0 / peak)

    with ag.ag_device(device):
        captured = ag.ag_capture(step)
        with pytest.raises(ag.CaptureError):
            captured(np.full((2, 2), 2.0, "f"))
        for i in range(3):  # it goes on uncaptured, as the step would
            x = np.full((2, 2), i + 3.0, "f")
            assert captured(x).item() == step(x).item()


kind_of = type
ASKS: dict[str, Callable[[Any], bool]] = {
    "is": lambda x: type(x) is np.ndarray,
    "a dict": lambda x: {np.ndarray: True, ag.Tensor: False}[type(x)],
    "its name": lambda x: type(x).__name__ == "ndarray",
    "of several": lambda x: all(kind is np.ndarray for kind in map(type, (x, x))),
    "by another name": lambda x: kind_of(x) is np.ndarray,
    "as a default": lambda x, of=type: of(x) is np.ndarray,  # type: ignore[misc]
    "isinstance": lambda x: isinstance(x, np.ndarray),
    "its class": lambda x: x.__class__ is np.ndarray,
}


@pytest.mark.parametrize("asks", ASKS)
def test_a_step_that_asks_for_the_type_of_an_array(asks: str, caplog: pytest.LogCaptureFixture) -> None:
    asked = ASKS[asks]

    def step(x: Any) -> ag.Tensor:
        return ag.ag_sum(x) * (2.0 if asked(x) else 1.0)

    captured = ag.ag_capture(step)
    for i in range(4):
        x = np.full((2, 2), i + 1.0, "f")
        assert captured(x).item() == step(x).item()
    uncaptured = asks not in ("isinstance", "its class")
    assert ("runs uncaptured" in caplog.text) is uncaptured


def test_a_layer_that_names_types_in_messages() -> None:
    """It is captured: names of types are only shown."""
    class Scale(ag.Layer):
        def __init__(self) -> None:
            self.linear = ag.ag_linear(2, 2)

        def forward(self, x: Any) -> ag.Tensor:
            if x.ndim != 2:
                raise TypeError(f"{type(self).__name__}: {type(x).__name__} of {x.ndim} axes")
            try:
                return self.linear(x)
            except ValueError as error:
                raise RuntimeError(type(error)) from error

    layer = Scale()
    captured = ag.ag_capture(lambda x: ag.ag_sum(layer(x)))
    for i in range(4):
        captured(np.full((2, 2), i + 1.0, "f"))
    assert captured.program is not None and captured._in_vain == 0


def two_optimizers(captured: bool, dtype: str) -> list[Any]:
    p, q, r = (ag.ag_param(np.full((2, 3), k, "f"), dtype=dtype) for k in (1.0, 2.0, 3.0))
    optimizers = ag.optimizer_sgd([p, q], lr=0.1), ag.optimizer_adam([p, r], lr=0.1)

    def step(x: Any) -> None:
        for optimizer, head in zip(optimizers, (q, r), strict=True):
            with ag.with_grad_tape():
                loss = ag.ag_sum(p * head * x)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()

    call = ag.ag_capture(step) if captured else step
    for k in range(9):
        call(ag.ag_tensor(np.full((2, 3), 0.1 * k, "f"), dtype=dtype))
    return [x.numpy().tolist() for x in (p, q, r)]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_two_optimizers_of_one_parameter(device: str, dtype: str) -> None:
    """Each step moves the parameter into the memory of the optimizer that steps: a launch, in every call."""
    with ag.ag_device(device):
        assert two_optimizers(True, dtype) == two_optimizers(False, dtype)
