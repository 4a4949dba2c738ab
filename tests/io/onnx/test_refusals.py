"""Refuse by name what no graph could hold, and leave everything as it was: modes, tensors, older files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag
from ag.autograd.op import Result, Run, op
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import exp

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def needs_onnx() -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed, so nothing was exported")


@op
def exp_of_mine(run: Run, x: Buffer) -> Result[None]:
    """An op that nobody else knows."""
    return run(exp, x), None


def by_sign(x: Any) -> Any:
    return ag.ag_relu(x) if float(ag.ag_sum(x)) > 0 else ag.ag_tanh(x)


def by_size(x: Any) -> Any:
    return ag.ag_relu(x) if x.shape[-1] < 6 else ag.ag_tanh(x)


def alone(x: Any) -> Any:
    return ag.ag_relu(x) if x.shape[-1] == 1 else ag.ag_tanh(x)


def other_operands(x: Any) -> Any:
    return x * ag.ag_exp(x) if x.shape[-1] < 6 else ag.ag_exp(x) * x


@ag.ag_capture
def captured(x: Any) -> Any:
    return ag.ag_exp(x)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "dropout in train mode": (lambda x: ag.ag_dropout(0.5)(x), "ag_dropout draws random numbers, ... call eval()"),
    "batch norm in train mode": (lambda x: ag.ag_batch_norm(3)(x), "ag_batch_norm moves running averages...eval()"),
    "attention with dropout": (lambda x: ag.ag_attention(x, x, x, dropout=0.5), "ag_attention draws...dropout=0.0"),
    "an op of the user's": (lambda x: exp_of_mine(x), "exp_of_mine has no ONNX operator; compute with other ops"),
    "a value read": (by_sign, "reads the values of a tensor of shape () that follows from its input"),
    "an array of values": (lambda x: x + np.abs(x.numpy()), "reads the values of a tensor of shape (3, 4)"),
    "a comparison": (lambda x: x * (x > 0), "gt has no ONNX operator"),
    "other ops for large batches": (by_size, "calls ag_relu (op 1) with a batch of 4, and ag_tanh (op 1) with a batch"),
    "other ops for one sample": (alone, "calls ag_tanh (op 1) with a batch of 4, and ag_relu (op 1) with a batch of 1"),
    "other operands": (other_operands, "calls ag_mul (op 2) on other tensors"),
    "a batch's length as a number": (lambda x: x / x.shape[-1], "another one with other inputs, such as a number of"),
    "a factor of the batch": (lambda x: ag.ag_scale(x, 1 / x.shape[-1]), "calls ag_scale (op 1) with numbers that ch"),
    "every second sample": (lambda x: x[:, ::2], "makes a tensor (ag_slice) of shapes (3, 2), (3, 3)"),
    "at most eight": (lambda x: ag.ag_exp(x)[:, : min(8, x.shape[-1])], "calls ag_slice (op 2) with numbers that"),
    "a place for each sample": (lambda x: x + np.arange(x.shape[-1])[None], "whose values along axis 1 depend on the"),
    "another batch": (lambda x: x + X, "takes the example, and not a batch of 5 samples made of it (ag_add: "),
    "a captured step": (lambda x: captured(x), "calls a captured step"),
    "no tensor": (lambda x: 3.0, "returns a float as 'output'; a tensor is required"),
    "nothing": (lambda x: (), "returns nothing"),
    "a constant": (lambda x: ag.ag_tensor(X), "returns as 'output' a tensor of shape (3, 4) that no op"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_is_refused(what: str, tmp_path: Path) -> None:
    model, message = REFUSED[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(b"older")
    with pytest.raises(ag.ExportError) as error:
        ag.export_onnx(model, path, X)
    said = str(error.value)
    assert said.startswith("export_onnx: ") and all(part in said for part in message.split("...")), said
    assert path.read_bytes() == b"older" and len([*tmp_path.iterdir()]) == 1


def test_a_model_that_changes_a_tensor_is_refused_and_put_back(tmp_path: Path) -> None:
    class Counting(ag.Layer):
        def __init__(self) -> None:
            self.calls = ag.ag_tensor(np.zeros((1, 1)))

        def forward(self, x: Any) -> Any:
            self.calls.data = self.calls.data + 1
            return x * 2.0

    model = Counting()
    with pytest.raises(ag.ExportError, match="changes calls when it is called"):
        ag.export_onnx(model, tmp_path / "model.onnx", X)
    assert model.calls.item() == 0 and not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("little_to_collect")  # as a refusal does
def test_a_captured_step_that_was_recorded_before_is_refused_too(tmp_path: Path) -> None:
    step = ag.ag_capture(lambda x: ag.ag_exp(x))
    for _ in range(3):
        step(ag.ag_tensor(X))
    with pytest.raises(ag.ExportError, match="captured step"):
        ag.export_onnx(lambda x: step(x), tmp_path / "model.onnx", X)
    with pytest.raises(ag.ExportError, match="captured step"):
        ag.export_onnx(lambda x: step(x) * x, tmp_path / "model.onnx", X)
    assert np.array_equal(step(ag.ag_tensor(X)).numpy(), ag.ag_exp(X).numpy())  # which goes on


def test_modes_stay_as_they_were(tmp_path: Path) -> None:
    model = ag.ag_sequential(ag.ag_linear(3, 2), ag.ag_dropout(0.5), ag.ag_batch_norm(2), ag.ag_dropout(0.5))
    ag.ag_train(model)[1].eval()
    before = model.state_dict()
    ag.export_onnx(model, tmp_path / "model.onnx", X)
    assert [layer.training for layer in (model, *model)] == [True, True, False, True, True]
    with pytest.raises(ag.ShapeError):
        ag.export_onnx(model, tmp_path / "model.onnx", X[:2])
    assert [layer.training for layer in (model, *model)] == [True, True, False, True, True]
    assert all(np.array_equal(x, before[name]) for name, x in model.state_dict().items())


def test_wrong_arguments(tmp_path: Path) -> None:
    model, path = ag.ag_linear(3, 2), tmp_path / "model.onnx"
    with pytest.raises(TypeError, match="export_onnx: the model is a str; a layer is required"):
        ag.export_onnx("model", path, X)  # type: ignore[arg-type]
    for kind in (ag.nn.Linear, ag.AgClassifier):
        with pytest.raises(TypeError, match=f"export_onnx: the model is the class {kind.__name__}; a layer is requi"):
            ag.export_onnx(kind, path, X)
    with pytest.raises(ag.DtypeError, match="export_onnx: data of type <U1 was given"):
        ag.export_onnx(model, path, "x")
    with pytest.raises(ag.DtypeError, match=r"the example's whole numbers .*ag_linear.* example\.astype"):
        ag.export_onnx(model, path, np.arange(12).reshape(3, 4))
    with pytest.raises(TypeError, match="export_onnx: the example is empty"):
        ag.export_onnx(model, path, ())
    with pytest.raises(ag.ShapeError, match="export_onnx: the example has no sample along its last axis"):
        ag.export_onnx(model, path, X[:, :0])
    with pytest.raises(OSError, match="export_onnx: No such file"):
        ag.export_onnx(model, tmp_path / "none" / "model.onnx", X)
    with ag.ag_dtype("bf16"):
        half = ag.ag_linear(3, 2)
    with pytest.raises(ag.DtypeError, match="export_onnx: W is of type bf16, for which runtimes have no operators"):
        ag.export_onnx(half, path, X)
    with pytest.raises(ag.DtypeError, match="export_onnx: the model computes with tensors of type bf16, for which"):
        ag.export_onnx(lambda x: ag.ag_cast(ag.ag_cast(x, "bf16"), "f32"), path, X)
    assert not [*tmp_path.iterdir()]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (lambda: ag.export_onnx(ag.ag_linear(3, 2), tmp_path / "m.onnx", X),
                 lambda: ag.load_weights(ag.ag_linear(3, 2), tmp_path / "m.onnx")):
        with pytest.raises(ImportError, match=r"the package onnx cannot be loaded .*\[onnx\]' installs it"):
            call()


def test_what_is_no_path() -> None:
    for path in (3, None, ["x"]):
        with pytest.raises(TypeError, match=f"export_onnx: path is a {type(path).__name__}; the name of a file"):
            ag.export_onnx(ag.ag_linear(2, 2), path, np.ones((2, 1)))
