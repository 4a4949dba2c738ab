"""Tensors of numbers that the program names, of all types, on every device, and in captured steps without uploads."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import ops
from ag.engine.device import backend_of

FLOATS, WHOLE = ["f32", "f16", "bf16"], ["i32", "u32", "bool"]


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE, "f64"])
def test_values_are_numpys(device: str, dtype: str) -> None:
    where = {"dtype": dtype, "device": "cpu" if dtype == "f64" else device}
    for found, want in (
            (ops.zeros(2, 3, **where), np.zeros((2, 3))), (ops.ones((2, 3), **where), np.ones((2, 3))),
            (ops.empty(3, **where), np.zeros(3)), (ops.full((), 1.0, **where), np.ones(())),
            (ops.full(2, 1.0, **where), np.ones(2)), (ops.ones(2, 0, **where), np.ones((2, 0))),
            (ops.eye(3, **where), np.eye(3)), (ops.eye(2, 4, **where), np.eye(2, 4)), (ops.eye(0, **where), np.eye(0)),
            (ops.arange(2, **where), np.arange(2)), (ops.arange(0, 2, 2, **where), np.arange(0, 2, 2)),
            (ops.arange(1, 1, **where), np.zeros(0)), (ops.linspace(0, 1, 2, **where), np.array([0, 1])),
            (ops.zeros_like(ops.ones(2, **where)), np.zeros(2)), (ops.full_like(ops.ones(2, 1), 1.0, **where),
                                                                  np.ones((2, 1)))):
        assert (found.dtype, found.device) == (dtype, where["device"]) and np.array_equal(found.numpy(), want)
        assert found.shape == want.shape and not found.requires_grad


def test_types_follow_the_numbers(device: str) -> None:
    with ag.ag_device(device):
        assert ops.arange(3).dtype == "i32" and ops.arange(3.0).dtype == "f32" and ops.arange(0, 1, 0.25).size == 4
        assert ops.arange(5, -5, -3).numpy().tolist() == [5, 2, -1, -4]
        assert ops.zeros(2).dtype == ops.linspace(0, 1, 3).dtype == ops.eye(2).dtype == "f32"
        assert np.array_equal(ops.arange(0.0, 1.0, 0.1).numpy(), np.arange(0.0, 1.0, 0.1).astype(np.float32))
        assert ops.full((2,), np.inf).numpy().tolist() == [np.inf] * 2 and np.isnan(ops.full(1, np.nan).item())
        assert ops.full((2,), 2**31 - 1, dtype="i32").numpy().tolist() == [2**31 - 1] * 2
        x = ops.ones(2, 2, dtype="bf16")
        assert (ops.ones_like(x).dtype, ops.ones_like(x, "f32").dtype, ops.ones_like([1.0, 2.0]).shape) == (
            "bf16", "f32", (2, 1))
        number = ops.zeros(())
        number.data = 5.0  # type: ignore[assignment]
        assert ops.zeros(()).item() == 0.0
    with ag.ag_dtype("bf16"):
        assert ops.zeros(2).dtype == "bf16" and ops.arange(2).dtype == "i32"


def test_a_captured_step_uploads_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ag.ag_device(device):
        step = ag.ag_capture(lambda x: (
            x + ops.ones_like(x), ops.eye(2) @ x, ops.arange(4), ops.arange(2.0, 6.0) * x[0, 0], ops.linspace(0, 1, 3),
            ops.zeros(3, dtype="f16"), ops.full_like(x, 7.0), ops.zeros(2, 0), ops.tril(x), ops.arange(9, dtype="i32")))
        x = ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]])
        first = [t.numpy() for t in step(x)]
        for _ in range(3):
            step(x)
        for t in step(x):
            t.numpy()
        assert step.replayed
        uploads: list[object] = []
        monkeypatch.setattr(type(backend_of(device)), "upload", lambda *given: uploads.append(given))
        again = step(x)
        monkeypatch.undo()
        assert not uploads and step.replayed
        for t, want in zip(again, first, strict=True):
            assert np.array_equal(t.numpy(), want)


def test_constants_of_a_step_that_changes_are_recorded_anew(device: str) -> None:
    with ag.ag_device(device):
        ends = [3.0, 6.0]
        step = ag.ag_capture(lambda x: x * ops.linspace(0.0, ends[0], 4))
        for end in (3.0, 3.0, 3.0, 6.0, 9.0, 9.0):
            ends[0] = end
            assert np.array_equal(step(ag.ag_tensor([[1.0]])).numpy().ravel(), np.linspace(0, end, 4, dtype=np.float32))


def test_a_step_keeps_its_constants_where_a_device_has_too_many(device: str) -> None:
    with ag.ag_device(device):
        backend, x = backend_of(device), ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]])
        for free in range(1, 6):  # places left for the step's constants
            for i in range(256):
                if len(backend.constants) < 256 - free:
                    backend.constant(256 * free + i + 0.0625, x.buffer.dtype)
            step = ag.ag_capture(lambda x: (
                ops.eye(2) @ x + ops.arange(2.0, 4.0) * ops.linspace(0, 1, 2), ops.zeros(2, 1)))
            for _ in range(5):
                assert np.array_equal(step(x)[0].numpy(), x.numpy() + [0.0, 3.0])
            assert step.replayed and len(backend.constants) <= 256


def test_constants_of_one_text_and_several_shapes_are_several() -> None:
    backend = backend_of("cpu")
    with ag.ag_device("cpu"):
        step = ag.ag_capture(lambda x: (x * ops.ones(0, 3, dtype="f16").astype("f32"), ops.ones(0, 2, dtype="f16")))
        assert [t.shape for t in step(ops.ones(1, 3))] == [(0, 3), (0, 2)]
    same = [backend.constant(np.float32([[1, 2]]), ops.ones(1).buffer.dtype) for _ in range(2)]
    assert same[0] is same[1]


def test_odd_arguments_are_refused() -> None:
    for call, error, fragments in (
            (lambda: ops.zeros(-1), ValueError, ("zeros: size is ", "at least 0")),
            (lambda: ops.full(2, ag.ag_tensor([1.0])), TypeError, ("full: fill_value is a tensor",)),
            (lambda: ops.full(2, 0.5, dtype="i32"), ag.DtypeError, ("full: ", "0.5", "whole numbers")),
            (lambda: ops.ones(2, dtype="f8"), ag.DtypeError, ("ones: unknown element type 'f8'",)),
            (lambda: ops.ones(2, device="tpu"), ag.DeviceError, ("unknown device 'tpu'",)),
            (lambda: ops.arange(0, 5, -1), ValueError, ("arange: start is 0", "leads from start to end")),
            (lambda: ops.arange(0, 5, 0), ValueError, ("step 0",)),
            (lambda: ops.arange(float("nan")), ValueError, ("arange: ", "finite")),
            (lambda: ops.linspace(0, 1, 2.5), ValueError, ("linspace: steps is ",)),
            (lambda: ops.eye(2.5), ValueError, ("eye: sizes is ",)),
            (lambda: ops.zeros(2, requires_grad=True), TypeError, ("zeros: there is no argument 'requires_grad'",))):
        with expect_error("an odd argument", error, *fragments):
            call()
    assert not hasattr(ag.Tensor, "zeros") and not hasattr(ag.Tensor, "arange")
