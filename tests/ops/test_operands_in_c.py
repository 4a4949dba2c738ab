"""`op.c` finds what ops ask of tensors that are alike, and leaves everything else to Python."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import ref

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.autograd import op as op_module
from ag.autograd import operands
from ag.autograd.operands import alike
from ag.autograd.tensor import Tensor, plain_tensor
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32

CODE: Any = operands.CODE
pytestmark = pytest.mark.skipif(CODE is None, reason="there was no compiler")

X, Y = (ag.ag_tensor(np.full((2, 3), k, np.float32)) for k in range(2))
WHOLE = ag.ag_tensor(np.array([1, 2]), dtype="i32")


class Sub(Tensor):
    """No class that ops make."""


@pytest.mark.parametrize(("args", "number"), [
    ((X,), 1), ((X, Y), 2), ((X, X), 2), ((X, 1, 2), 1), ((X, Y, None, "x"), 2), ((WHOLE,), 1)])
def test_tensors_that_are_alike(args: Any, number: int) -> None:
    found = alike(args, number)
    assert found is not None
    backend, dtype, buffers, tensors, others = found
    assert backend is X.buffer.backend and dtype is (I32 if args[0] is WHOLE else F32)
    assert len(buffers) == number and all(b is t.buffer for b, t in zip(buffers, args, strict=False))
    assert tensors == args[:number] or all(a is b for a, b in zip(tensors, args[:number], strict=True))
    assert (type(tensors), type(others), others) == (tuple, tuple, args[number:])


@pytest.mark.parametrize(("args", "number"), [
    ((), 0), ((), 1), ((X,), 0), ((X,), 2), ((1.0,), 1), ((X, 1.0), 2), ((np.ones(3), X), 2), ((None,), 1),
    ((X, WHOLE), 2), ((X, ag.ag_tensor(1.0, device="cpu:1")), 2), ((X, Y), 1), ((X, 1, Y), 1),
    ((Sub(X.buffer),), 1), ((Tensor.__new__(Tensor),), 1)],
    ids=["none", "too few", "of none", "less than two", "a number", "and a number", "an array", "nothing", "two types",
         "two devices", "a tensor behind", "one further behind", "another class", "without a buffer"])
def test_what_is_left_to_python(args: Any, number: int) -> None:
    assert alike(args, number) is None


@pytest.mark.parametrize("given", [(), ((X,),), ([X], 1), ((X,), -1), ((X,), 1, 2), ((X,), "1")])
def test_other_calls_are_refused(given: Any) -> None:
    with pytest.raises(TypeError):
        alike(*given)


def test_a_tensor_is_that_of_the_class() -> None:
    made, other = plain_tensor(X.buffer), Tensor(X.buffer)
    assert type(made) is Tensor and made.buffer is X.buffer and other.id == made.id + 1
    for name in ("requires_grad", "node", "grad", "name", "shape", "dtype", "device"):
        assert getattr(made, name) == getattr(other, name)
    made.name, made.grad = "x", other
    assert (made.name, made.grad) == ("x", other) and ref(made)() is made
    for wrong in (None, X, 1.0):
        with expect_error("a tensor of no buffer", TypeError, "ag_tensor(values)"):
            plain_tensor(wrong)  # type: ignore[arg-type]


def test_nothing_is_held() -> None:
    """Neither what was asked about nor what was made; a circle that goes through a tensor is found."""
    x = ag.ag_tensor([1.0])
    buffer, gone = ref(x.buffer), ref(x)
    for _ in range(10):
        alike((x, x, 3.0), 2)
        alike((x, 1.0), 2)
        made = plain_tensor(x.buffer)
    made.grad = made
    last = ref(made)
    del made, x
    assert gone() is None
    gc.collect()
    assert last() is None and buffer() is None


@pytest.mark.parametrize("arguments", [(Buffer, Buffer, count()), (Tensor, Tensor, count()), (Tensor, Buffer, 3),
                                       (Tensor, Buffer), (3, Buffer, count())])
def test_other_classes_are_refused(arguments: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        type(CODE)(*arguments)


CALLS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: X + 1.0, "the other way round": lambda: 2.0 - X, "arrays": lambda: X * np.ones((2, 3)),
    "tensors": lambda: X @ ag.ag_tensor(np.ones((3, 1))), "sizes": lambda: X.reshape(3, -1),
    "one tuple": lambda: ag.ag_reshape(X, (6, 1)), "a list": lambda: ag.ag_concat([X, Y]),
    "numbers by name": lambda: ag.ag_sum(X, dim=0, keepdim=True), "a rate": lambda: ag.ag_clamp(X, 0, 0.5),
    "whole numbers moved": lambda: WHOLE.reshape(2, 1), "whole numbers": lambda: WHOLE + WHOLE,
    "no number": lambda: ag.ag_clamp(X, "a", 1.0),  # type: ignore[arg-type]
    "a tensor for a number": lambda: ag.ag_clamp(X, Y, 1.0), "a tensor for a size": lambda: X.reshape(Y),
    "two types": lambda: X + WHOLE, "two devices": lambda: X + ag.ag_tensor(np.ones((2, 3)), device="cpu:1"),
    "other shapes": lambda: X + ag.ag_tensor(np.ones((5, 3))), "too many": lambda: ag.ag_relu(X, Y),
    "none": lambda: ag.ag_add(X),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("case", CALLS)
def test_ops_do_the_same_without_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome() -> tuple[object, ...]:
        try:
            result = CALLS[case]()
        except Exception as error:  # noqa: BLE001 - which is compared
            return type(error), str(error)
        return result.shape, result.dtype, result.numpy().tobytes()

    quick = outcome()
    monkeypatch.setattr(op_module, "alike", lambda args, number: None)
    monkeypatch.setattr(op_module, "plain_tensor", Tensor)
    assert outcome() == quick
