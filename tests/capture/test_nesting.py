"""Recordings, checkpoints, exports and profiles in each other: the table of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.interpreter import current

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 10


class Net:
    """A model with dropout, its optimizer, and one step of training."""

    def __init__(self, around: Callable[..., ag.Tensor] | None = None) -> None:
        ag.ag_seed(1)
        self.model = ag.ag_sequential(ag.ag_linear(3, 5), ag.ag_dropout(0.3), ag.ag_linear(5, 2))
        self.optimizer = ag.optimizer_adam(self.model.parameters(), lr=0.01)
        self.around = around

    def step(self, x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            y = self.model(x) if self.around is None else self.around(self.model, x)
            loss = ag.ag_mean(y * y)
        self.optimizer.step(ag.backward(loss))
        return loss


def losses(net: Net, step: Callable[[ag.Tensor], ag.Tensor]) -> list[float]:
    del net
    return [step(ag.ag_tensor(X + k)).item() for k in range(9)]


AROUND: dict[str, Callable[..., ag.Tensor]] = {
    "a checkpoint": ag.ag_checkpoint,
    "two checkpoints": lambda model, x: ag.ag_checkpoint(lambda t: ag.ag_checkpoint(model, t), x),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_checkpoint_in_a_recording(device: str, around: str, captured: bool) -> None:
    with ag.ag_device(device):
        plain, net = Net(), Net(AROUND[around])
        expected = losses(plain, plain.step)
        net = Net(AROUND[around])
        assert losses(net, ag.ag_capture(net.step) if captured else net.step) == expected
    assert current() is None


@pytest.mark.parametrize("before", range(9))
def test_a_captured_step_in_a_checkpoint(device: str, before: int) -> None:
    """Its calls are recorded, compared or replayed."""
    with ag.ag_device(device):
        inner, weight = ag.ag_capture(lambda x: x * 2.0), ag.ag_param(np.ones((3, 4), np.float32))
        for _ in range(before):
            inner(ag.ag_tensor(X))
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_checkpoint(lambda x: inner(x) * weight, ag.ag_tensor(X)))
        np.testing.assert_array_equal(ag.backward(loss)[weight].numpy(), 2 * X)


def test_a_recording_in_a_recording_is_refused(device: str) -> None:
    with ag.ag_device(device), pytest.raises(ag.CaptureError, match="captured steps do not nest"):
        ag.ag_capture(lambda x: ag.ag_capture(lambda y: y * 2.0)(x))(ag.ag_tensor(X))
    assert current() is None


def exported(model: Any, folder: Path) -> None:
    ag.export_onnx(model, folder / "m.onnx", ag.ag_tensor(X))


def test_an_export_of_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net = Net()
    exported(lambda x: ag.ag_checkpoint(net.model, x), tmp_path)
    assert current() is None


def test_an_export_of_a_captured_step_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net = Net()
    step = ag.ag_capture(lambda x: net.model(x))
    with pytest.raises(ag.ExportError, match="calls a captured step"):
        exported(lambda x: step(x) * 2.0, tmp_path)
    assert current() is None


def test_an_export_in_a_captured_step_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net = Net()
    with pytest.raises(ag.CaptureError):
        ag.ag_capture(lambda x: (exported(net.model, tmp_path), x * 2.0)[1])(ag.ag_tensor(X))
    assert current() is None


@pytest.mark.parametrize("around", [None, *AROUND])
def test_an_anomaly_around_and_in_a_checkpoint(device: str, around: str | None) -> None:
    """The same losses, and captured steps run op by op."""
    net = Net()
    expected = losses(net, net.step)
    with ag.detect_anomaly():
        net = Net(None if around is None else AROUND[around])
        step = ag.ag_capture(net.step)
        assert losses(net, step) == expected and step.program is None

    def watched(model: Any, x: ag.Tensor) -> ag.Tensor:
        with ag.detect_anomaly():
            return ag.ag_checkpoint(model, x) if around is None else AROUND[around](model, x)

    net = Net(watched)
    assert losses(net, net.step) == expected
    assert current() is None


def test_an_anomaly_in_and_around_an_export(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net = Net()

    def watched(x: ag.Tensor) -> ag.Tensor:
        with ag.detect_anomaly():
            return net.model(x)

    exported(watched, tmp_path)
    with ag.detect_anomaly():
        exported(net.model, tmp_path)
    assert current() is None


@pytest.mark.parametrize("around", [None, *AROUND])
def test_a_profile_around_a_recording_and_around_a_replay(device: str, around: str | None) -> None:
    with ag.ag_device(device):
        net = Net(None if around is None else AROUND[around])
        step = ag.ag_capture(net.step)
        for _ in range(3):
            with ag.profile() as seen:
                step(ag.ag_tensor(X))
            assert seen.events
    assert current() is None
