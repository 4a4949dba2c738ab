"""Programs that broke captured steps once: gradients read in turns, failing calls, classes, deletions, aliases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import ag


def x(k: int) -> np.ndarray:
    return np.full((2, 1), k + 1.0, np.float32)


def same(world: Callable[[Callable[..., Any]], Callable[[int], Any]], calls: int = 12) -> None:
    """Twelve calls in two worlds, of which one has a captured step."""
    eager, captured = world(lambda f: f), world(ag.ag_capture)
    for k in range(calls):
        assert eager(k) == captured(k), f"call {k + 1}"


@pytest.mark.parametrize("zero", [True, False])
def test_one_gradient_is_read_after_each_call(device: str, zero: bool) -> None:
    """The others lie in the same block, and move out of it with the one that was read."""
    def world(wrap: Any) -> Any:
        W, b = ag.ag_param([[2.0, 3.0]]), ag.ag_param([[1.0]])
        optimizer = ag.optimizer_sgd([W, b], lr=0.25)

        def f(x: Any) -> Any:
            if zero:
                optimizer.zero_grad()
            with ag.with_grad_tape():
                loss = ag.ag_sum(ag.ag_matmul(W, x) + b * x)
            ag.backward(loss)
            optimizer.step()
            return W.grad

        step, parameters = wrap(f), (W, b)

        def call(k: int) -> Any:
            out = step(x(k)).numpy().tolist()
            return out, parameters[k % 2].grad.numpy().tolist(), b.numpy().tolist() if k % 3 == 0 else None

        return call

    with ag.ag_device(device):
        same(world)


def test_a_recorded_call_fails_beside_older_gradients(device: str) -> None:
    def world(wrap: Any) -> Any:
        W, V, fail = ag.ag_param([[2.0, 3.0]]), ag.ag_param([[1.0, 1.0]]), [False]

        def f(x: Any) -> Any:
            ag.clip_grad_norm([W, V], {W: W.grad, V: V.grad}, 1.0)
            if fail[0]:
                raise ValueError("mine")
            return ag.ag_sum(W.grad * x)

        step = wrap(f)

        def call(k: int) -> Any:
            W.grad = V.grad = None
            with ag.with_grad_tape():
                loss = ag.ag_sum((W + V) * ag.ag_tensor([[k + 1.0, 2.0]]))
            ag.backward(loss)
            fail[0] = k in (0, 4, 7)
            try:
                out = step(np.full((1, 2), k + 1.0, np.float32)).item()
            except ValueError as error:
                out = str(error)
            return out, W.grad.numpy().tolist(), V.grad.numpy().tolist()

        return call

    with ag.ag_device(device):
        same(world)


def test_a_cotangent_that_two_parameters_share(device: str) -> None:
    """One has a gradient already, and the other none: its result has memory, and the sum has not."""
    def world(wrap: Any) -> Any:
        W, V = ag.ag_param([[2.0, 3.0]]), ag.ag_param([[1.0, 1.0]])
        V.grad = ag.ag_tensor([[10.0, 10.0]])

        def f(x: Any) -> None:
            with ag.with_grad_tape():
                loss = ag.ag_sum((W + V) * x)
            ag.backward(loss)

        step = wrap(f)

        def call(k: int) -> Any:
            step(np.full((1, 2), k + 1.0, np.float32))
            found = W.grad.numpy().tolist(), V.grad.numpy().tolist()
            W.grad = None
            return found

        return call

    with ag.ag_device(device):
        same(world)


RATE = [1.0]


@dataclass
class Batch:
    x: Any
    scale: ClassVar[float] = 1.0

    def rate(self) -> float:
        return RATE[0] * Batch.scale


class Named(NamedTuple):
    x: Any

    def rate(self) -> float:
        return RATE[0]


@pytest.mark.parametrize("kind", [Batch, Named])
def test_methods_of_arguments(kind: Callable[[Any], Any]) -> None:
    def world(wrap: Any) -> Any:
        W = ag.ag_param([[2.0, 3.0]])
        step = wrap(lambda b: ag.ag_sum(ag.ag_matmul(W, b.x) * b.rate()))

        def call(k: int) -> Any:
            RATE[0] = 1.0 if k < 4 else 10.0
            return step(kind(x(k))).item()

        return call

    same(world)


def test_a_layers_running_mean_is_passed_in_later_calls(device: str) -> None:
    def world(wrap: Any) -> Any:
        norm, other = ag.ag_batch_norm(2), ag.ag_tensor(np.zeros((2, 1)))
        step = wrap(lambda x, m: ag.ag_sum(norm(x)) * 0.0 + ag.ag_sum(m))
        return lambda k: step(x(k) @ np.array([[1, 2, 4.0]], np.float32),
                              norm.running_mean if 4 <= k < 7 else other).item()

    with ag.ag_device(device):
        same(world)


class Temporary(ag.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.W = ag.ag_param([[2.0, 3.0]])

    def forward(self, x: Any) -> ag.Tensor:
        self.made = 1
        y = ag.ag_matmul(self.W, x)
        del self.made
        if "flag" in vars(self):
            del self.flag
        return ag.ag_sum(y)


def test_attributes_that_the_step_deletes() -> None:
    def world(wrap: Any) -> Any:
        layer = Temporary()
        step = wrap(lambda x: layer(x))

        def call(k: int) -> Any:
            layer.flag = 1
            return step(x(k)).item(), sorted(vars(layer))

        return call

    same(world)


def wants(t: Any) -> Any:
    t.requires_grad = True
    return ag.ag_sum(t)


def renames(t: Any) -> Any:
    t.name = "other"
    return ag.ag_sum(t)


def sets_grad(t: Any) -> Any:
    t.grad = t * 2.0
    return ag.ag_sum(t)


def names_its_result(t: Any) -> Any:
    y = ag.ag_sum(t).detach()
    y.name = "loss"
    return y


@pytest.mark.parametrize("step", [wants, renames, sets_grad, names_its_result], ids=lambda step: step.__name__)
def test_attributes_of_arguments_and_results_are_refused(step: Callable[[Any], Any]) -> None:
    with pytest.raises(ag.CaptureError, match="sets name, requires_grad or grad"):
        ag.ag_capture(step)(ag.ag_tensor([1.0, 2.0]))


def test_an_argument_with_a_gradient_is_refused() -> None:
    t = ag.ag_tensor([1.0])
    step = ag.ag_capture(lambda t: t * 2.0)
    for _ in range(5):
        step(t)
    t.grad = ag.ag_tensor([1.0])
    with pytest.raises(ag.CaptureError, match="has a gradient"):
        step(t)


class Config:
    rate = 1.0

    def get(self) -> float:
        return self.rate


CONFIG, TABLE = Config(), {"rate": 1.0}
WAYS: dict[str, Callable[[], float]] = {
    "attrgetter": (lambda get: lambda: get(CONFIG))(attrgetter("rate")),
    "methodcaller": (lambda get: lambda: get(CONFIG))(methodcaller("get")),
    "a method of a dict": (lambda get: lambda: get("rate"))(TABLE.get),
}


@pytest.mark.parametrize("way", WAYS)
def test_reads_through_helpers_of_the_standard_library(way: str) -> None:
    read = WAYS[way]

    def world(wrap: Any) -> Any:
        step = wrap(lambda x: ag.ag_sum(ag.ag_tensor(x)) * read())

        def call(k: int) -> Any:
            CONFIG.rate = TABLE["rate"] = 1.0 if k < 4 else 2.0
            return step(x(k)).item()

        return call

    same(world)
