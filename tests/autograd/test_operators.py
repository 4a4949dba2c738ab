"""Operators that are no ops: comparisons, `in`, iteration, and `+=` on parameters and others."""

from __future__ import annotations

import array
import copy
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

X = np.array([[1.0, -2.0, 4.0], [0.5, 3.0, -1.0]], np.float32)
Y = np.array([[1.0, 2.0, -4.0], [0.5, 3.5, -1.0]], np.float32)
V = np.array([1.0, 3.0, 4.0], np.float32)
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]

# ---------------------------------------------------------------------------------------------- comparison


@pytest.mark.parametrize("relation", COMPARISONS)
def test_comparisons_go_element_by_element(device: str, relation: Callable[[Any, Any], Any]) -> None:
    x, y = ag.ag_tensor(X), ag.ag_tensor(Y)
    for got, want in [(relation(x, y), relation(X, Y)), (relation(x, Y), relation(X, Y)),
                      (relation(X, y), relation(X, Y)), (relation(x, 1), relation(X, 1)),
                      (relation(np.float64(0.5), x), relation(0.5, X)), (relation(x, [1, 3, 4]), relation(X, V))]:
        assert isinstance(got, ag.Tensor) and got.dtype == "bool" and got.numpy().dtype == bool
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_tensor_equals_what_it_was_made_of(dtype: str) -> None:
    """Host values are rounded as the tensor's were, so 0.1 equals 0.1."""
    values = np.array([[0.1, 1e-3], [1 / 3, 7.0]])
    t = ag.ag_tensor(values, dtype=dtype)
    assert (t == values).all() and not (t != values).any()
    assert (ag.ag_tensor(0.1, dtype=dtype) == 0.1).all()


def test_integers_are_compared_exactly() -> None:
    t = ag.ag_tensor([[2**24 + 1, -3]], dtype="i32")
    assert (t == [[2**24 + 1, -3]]).all()
    assert not (t == 2**24).any()
    assert (t < 2**40).all()
    assert (t < 0.5).numpy().tolist() == [[False, True]]


@pytest.mark.parametrize("relation", COMPARISONS)
def test_integers_and_a_number_in_a_captured_step(device: str, relation: Callable[[Any, Any], Any]) -> None:
    """As ``routes == 2`` and ``ids != padding`` are; beside integers of more than 24 bits, too."""
    ids = np.array([[-(2**31), -(2**24) - 1, -3, 0, 2], [2**31 - 1, 2**24 + 1, 2**24, 2**24 - 1, 3]], np.int32)
    with ag.ag_device(device):
        assert relation(ag.ag_tensor(ids[:, :0], dtype="i32"), 2).shape == (2, 0)
        for number in (np.int64(2), 2**24 - 1, 1 - 2**24):
            step = ag.ag_capture(lambda x: relation(ag.ag_tensor(x, dtype="i32"), number))  # noqa: B023
            for given in (ids, ids[:, ::-1], ids):
                np.testing.assert_array_equal(step(given), relation(given, number))


def test_tensors_of_other_types_and_devices_are_compared() -> None:
    x = ag.ag_tensor(X)
    assert (x == x.astype("f16")).all()
    assert (x == ag.ag_to_device(x, "cpu:1")).all()


def test_a_vector_is_compared_with_a_column() -> None:
    t = ag.ag_tensor([1.0, 2.0, 3.0])
    assert (t == [1.0, 2.0, 3.0]).numpy().tolist() == [[True]] * 3
    with expect_error("a column and a tensor of one axis", ag.ShapeError, "eq: ", "(3, 1)", "(3,)"):
        t == ag.ag_reshape(t, 3)  # noqa: B015
    with expect_error("a vector beside a square matrix", ag.ShapeError, "lt: ", "(3, 3)", "row or a column"):
        ag.ag_tensor(np.ones((3, 3))) < [1.0, 2.0, 3.0]  # noqa: B015
    with expect_error("shapes that do not broadcast", ag.ShapeError, "eq: ", "(3, 1)", "(2, 2)"):
        t == np.ones((2, 2))  # noqa: B015


class Shared:
    """An array of another library."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.array([1.0, 5.0, 3.0])


@pytest.mark.parametrize("other", [array.array("d", [1, 5, 3]), range(1, 6, 2), memoryview(np.array([1.0, 5.0, 3.0])),
                                   deque([1, 5, 3]), Shared()], ids=lambda other: type(other).__name__)
def test_whatever_arithmetic_takes_for_numbers_is_compared(other: Any) -> None:
    t, wanted = ag.ag_tensor([1.0, 2.0, 3.0]), np.asarray(other).reshape(-1, 1)
    assert np.array_equal(t == other, t.numpy() == wanted) and np.array_equal(t != other, t.numpy() != wanted)
    assert np.array_equal(t < other, t.numpy() < wanted) and np.array_equal((t + other).numpy(), t.numpy() + wanted)
    for nothing in (None, "abc", b"abc", object()):
        assert (t == nothing) is False and (t != nothing) is True


class Column:
    """Stands for a column of pandas, which leaves operators to a class that stands above it."""

    def __init__(self, *values: float) -> None:
        self._values = np.array(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._values

    def _left(self, other: object) -> Any:
        assert getattr(type(other), "__pandas_priority__", 0) > 4000  # that of a table; without one: np.dtype("f32")
        return NotImplemented

    __add__ = __mul__ = __eq__ = __lt__ = _left
    __hash__ = None  # type: ignore[assignment]


def test_a_column_is_an_operand_on_either_side() -> None:
    column, t = Column(1.0, 3.0), ag.ag_param([2.0, 2.0])
    assert (column + t).numpy().tolist() == (t + column).numpy().tolist() == [[3.0], [5.0]]
    assert (column < t).numpy().tolist() == [[True], [False]] and (column == t).numpy().tolist() == [[False], [False]]
    assert (t != column).all() and (t > column).numpy().tolist() == [[True], [False]]


def test_what_cannot_be_compared() -> None:
    t = ag.ag_tensor(X)
    assert (t == None) is False and (t != "a") is True  # noqa: E711
    with pytest.raises(TypeError, match="'<' not supported between instances of 'Tensor' and 'str'"):
        t < "a"  # type: ignore[operator]  # noqa: B015
    for wrong in (1j, np.array([1j]), ["a"], np.array([None])):
        with expect_error("something that is no number", ag.DtypeError, "data of type", "numbers"):
            t == wrong  # noqa: B015
    with expect_error("truth of several", ag.ShapeError, "bool: ", "t.any() or t.all()"):
        bool(t == X)


# ---------------------------------------------------------------------------------------------- containers


def test_in_looks_for_numbers(device: str) -> None:
    t = ag.ag_tensor(X)
    assert 4.0 in t and 5.0 not in t and [1.0, -2.0, 4.0] in t
    assert ag.ag_tensor(0.5) in t
    with expect_error("text in a tensor", TypeError, "in: a str"):
        "a" in t  # noqa: B015


def test_iteration_goes_over_the_first_axis(device: str) -> None:
    t = ag.ag_param(X)
    rows = list(t)
    assert [row.shape for row in rows] == [(3,), (3,)]
    np.testing.assert_array_equal(np.stack([row.numpy() for row in reversed(t)]), X[::-1])
    with ag.with_grad_tape():
        loss = sum((row.sum() * i for i, row in enumerate(t, 1)), ag.ag_tensor(0.0))
    np.testing.assert_array_equal(ag.backward(loss)[t].numpy(), [[1.0] * 3, [2.0] * 3])
    for read in (list, iter, tuple, max):
        with expect_error("going over a scalar", TypeError, "iter: a tensor of shape ()"):
            read(ag.ag_tensor(1.0))
    assert list(ag.ag_tensor([])) == []


# ---------------------------------------------------------------------------------------------- in place

CHANGES: list[tuple[Callable[[Any, Any], Any], Any]] = [
    (operator.iadd, 2.0), (operator.isub, Y), (operator.imul, 0.5), (operator.itruediv, 4.0), (operator.ipow, 2.0),
    (operator.imatmul, np.eye(3, dtype=np.float32)), (operator.isub, [1.0, 2.0, 3.0])]


def test_a_frozen_parameter_is_changed_in_place() -> None:
    """A target network follows another one, although no gradient flows to it."""
    source, target = ag.nn.Linear(2, 2), ag.nn.Linear(2, 2).freeze()
    wanted = {name: (p.numpy() + source.parameters()[name].numpy()) / 2 for name, p in target.buffers().items()}
    for network in (target, copy.deepcopy(target)):
        for name, t in network.buffers().items():
            t += 0.5 * (source.parameters()[name] - t)
        for name, t in network.buffers().items():
            np.testing.assert_allclose(t.numpy(), wanted[name], rtol=1e-6)
    w = ag.ag_param(X)
    w.requires_grad = False
    same = w
    w += 1.0
    assert same is w and np.array_equal(w.numpy(), X + 1)
    t = constant = ag.ag_tensor(X)
    t += 1.0
    assert t is not constant and np.array_equal(constant.numpy(), X)



@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("change", "other"), CHANGES)
def test_a_parameter_is_changed_in_place(
    device: str, dtype: str, change: Callable[[Any, Any], Any], other: Any
) -> None:
    p = ag.ag_param(X, dtype=dtype)
    same, buffer = p, p.buffer
    p = change(p, other)
    assert p is same and p.buffer is buffer and p.requires_grad
    np.testing.assert_allclose(p.numpy(), change(X.copy(), np.asarray(other, np.float32)), rtol=2e-2)
    assert p.dtype == dtype


def test_gradient_descent_by_hand_in_a_captured_step(device: str) -> None:
    def run(capture: bool) -> np.ndarray[Any, Any]:
        p = ag.ag_param(X)

        def step(x: ag.Tensor) -> ag.Tensor:
            nonlocal p
            with ag.with_grad_tape():
                loss = ag.ag_sum((p - x) ** 2)
            p -= 0.1 * ag.backward(loss)[p]
            return loss

        step_or_replay = ag.ag_capture(step) if capture else step
        for _ in range(3):
            step_or_replay(ag.ag_tensor(Y))
        return p.numpy()

    np.testing.assert_array_equal(run(True), run(False))


def test_a_parameter_is_not_changed_where_it_is_recorded() -> None:
    p = ag.ag_param(X)
    with ag.with_grad_tape():
        loss = ag.ag_sum(p * p)
        with expect_error("a parameter changed inside a tape", ag.TapeError, "-=: a parameter of shape (2, 3)"):
            p -= 1.0
    np.testing.assert_array_equal(p.numpy(), X)
    np.testing.assert_array_equal(ag.backward(loss, retain=True)[p].numpy(), 2 * X)
    with ag.no_grad():
        p += 0.0
    with expect_error("a parameter changed before its backward", ag.TapeError, "was changed after ag_mul"):
        ag.backward(loss)


def test_a_parameter_keeps_its_shape() -> None:
    p = ag.ag_param([[1.0]])
    with expect_error("a parameter that would grow", ag.ShapeError, "+=: a parameter of shape (1, 1)", "(2, 3)"):
        p += ag.ag_tensor(X)
    assert p.numpy().tolist() == [[1.0]]


def test_other_tensors_are_never_changed_by_operators(device: str) -> None:
    t = ag.ag_tensor(X)
    before = t
    t += 1.0
    assert t is not before
    np.testing.assert_array_equal(before.numpy(), X)
    np.testing.assert_array_equal(t.numpy(), X + 1)
    p = ag.ag_param(X)
    with ag.with_grad_tape():
        loss = ag.ag_tensor(0.0)
        for _ in range(2):
            loss += ag.ag_sum(p)
    np.testing.assert_array_equal(ag.backward(loss)[p].numpy(), np.full((2, 3), 2.0))
