"""Guards of a captured step notice changes in unusual places, and gradients of another kind."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag

W = ag.ag_param([[1.0]])


def total(t: ag.Tensor, factor: float) -> ag.Tensor:
    result: ag.Tensor = ag.ag_sum(W * t * factor)
    return result


def local_attribute() -> tuple[Callable[..., Any], Callable[[], object]]:
    local = threading.local()
    local.rate = 2.0
    return lambda t: total(t, local.rate), lambda: setattr(local, "rate", 3.0)


def local_list() -> tuple[Callable[..., Any], Callable[[], object]]:
    local = threading.local()
    local.rates = [2.0]
    return lambda t: total(t, local.rates[0]), lambda: local.rates.__setitem__(0, 3.0)


def local_absent() -> tuple[Callable[..., Any], Callable[[], object]]:
    local = threading.local()
    return lambda t: total(t, getattr(local, "rate", 2.0)), lambda: setattr(local, "rate", 3.0)


def wrapped_like_an_op() -> tuple[Callable[..., Any], Callable[[], object]]:
    rates = [2.0]

    @functools.wraps(ag.ag_sum)
    def step(t: ag.Tensor) -> ag.Tensor:
        return total(t, rates[0])

    return step, lambda: rates.__setitem__(0, 3.0)


def wrapped_like_numpy() -> tuple[Callable[..., Any], Callable[[], object]]:
    rates = [2.0]

    @functools.wraps(np.sum)
    def rate() -> float:
        return rates[0]

    return lambda t: total(t, rate()), lambda: rates.__setitem__(0, 3.0)


def of_a_nameless_module() -> tuple[Callable[..., Any], Callable[[], object]]:
    space: dict[str, Any] = {"total": total, "rate": 2.0}
    exec("def step(t):\n    return total(t, rate)", space)
    assert space["step"].__module__ == "builtins" or space["step"].__module__ is None
    return space["step"], lambda: space.__setitem__("rate", 3.0)


def made_by_a_factory() -> tuple[Callable[..., Any], Callable[[], object]]:
    rates: defaultdict[str, float] = defaultdict(lambda: 2.0)
    return lambda t: (total(t, rates["a"]), rates.clear())[0], lambda: setattr(rates, "default_factory", lambda: 3.0)


def true_later() -> tuple[Callable[..., Any], Callable[[], object]]:
    class Flag:
        pass

    flag = Flag()
    return lambda t: total(t, 2.0 if flag else 3.0), lambda: setattr(Flag, "__bool__", lambda self: False)


def masked() -> tuple[Callable[..., Any], Callable[[], object]]:
    values = np.ma.array([2.0, 3.0], mask=[False, True])
    step = lambda t: total(t, float(values.sum()) - (0.0 if values.count() == 1 else 2.0))  # noqa: E731

    return step, lambda: values.__setattr__("mask", [False, False])


def slots() -> tuple[Callable[..., Any], Callable[[], object]]:
    class Slots:
        __slots__ = ("rate",)

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(f"the user's code runs for {name}")

    holder = Slots()
    holder.rate = 2.0
    return lambda t: total(t, holder.rate), lambda: setattr(holder, "rate", 3.0)


KINDS = [local_attribute, local_list, local_absent, wrapped_like_an_op, wrapped_like_numpy, of_a_nameless_module,
         true_later, masked, slots]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("before", [1, 3, 5])
def test_a_change_is_noticed(make: Callable[[], tuple[Callable[..., Any], Callable[[], object]]], before: int) -> None:
    function, change = make()
    step, found = ag.ag_capture(function), []
    for k in range(8):
        if k == before:
            change()
        found.append(step(ag.ag_tensor([[k + 1.0]])).item() / (k + 1))
    assert found == [2.0] * before + [3.0] * (8 - before)


def test_another_factory_of_a_dict_is_noticed() -> None:
    function, change = made_by_a_factory()
    step, found = ag.ag_capture(function), []
    for k in range(8):
        if k == 5:
            change()
        found.append(step(ag.ag_tensor([[1.0]])).item())
    assert found == [2.0] * 5 + [3.0] * 3


def test_a_generator_in_a_local_is_refused() -> None:
    local = threading.local()
    local.rng = np.random.default_rng(1)
    with pytest.raises(ag.CaptureError, match="takes something from rng"):
        ag.ag_capture(lambda t: total(t, local.rng.random()))(ag.ag_tensor([[1.0]]))


GRADIENTS: dict[str, Callable[[str], Any]] = {
    "a number": lambda device: 3.0, "an array": lambda device: np.ones((2, 3)),
    "another shape": lambda device: ag.ag_tensor(np.ones((3, 2)), device),
    "one element": lambda device: ag.ag_sum(ag.ag_tensor([1.0], device)),
    "a row": lambda device: ag.ag_tensor(np.ones((1, 3)), device),
    "whole numbers": lambda device: ag.ag_tensor(np.full((2, 3), 7), device, "i32"),
    "16 bits": lambda device: ag.ag_tensor(np.full((2, 3), 0.1), device, "f16"),
    "another device": lambda device: ag.ag_tensor(np.full((2, 3), 5.0), "cpu:1")}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_a_gradient_of_another_kind(kind: str, calls: int, device: str) -> None:
    """Raise as the eager step does, and leave the gradient that was set."""
    with ag.ag_device(device):
        p, x = ag.ag_param(np.ones((2, 3))), ag.ag_tensor(np.ones((2, 3)))

        def step(x: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss: ag.Tensor = ag.ag_sum(p * x)
            ag.backward(loss)
            return loss

        captured = ag.ag_capture(step)
        for k in range(calls):
            p.grad = ag.ag_tensor(np.full((2, 3), float(k)))
            captured(x)
            assert np.array_equal(p.grad.numpy(), np.full((2, 3), k + 1.0))
        wrong: Any = GRADIENTS[kind](device)
        p.grad = wrong
        with pytest.raises((ag.TapeError, ag.CaptureError)):
            captured(x)
        assert p.grad is wrong
        p.grad = ag.ag_tensor(np.zeros((2, 3)))
        captured(x)
        assert np.array_equal(p.grad.numpy(), np.ones((2, 3)))
