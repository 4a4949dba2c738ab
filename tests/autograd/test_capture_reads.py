"""What a captured step reads in Python, wherever it stands: after a change the call is what the eager one is."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ag

X = np.random.default_rng(4).standard_normal((3, 5)).astype(np.float32)
Step = Callable[[ag.Tensor], ag.Tensor]


@dataclass
class Config:
    k: float = 1.0


class Inherited:
    k = 1.0


class Slots:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 1.0


class Computed:
    def __init__(self) -> None:
        self.half = 0.5

    @property
    def k(self) -> float:
        return 2 * self.half


class Nested:
    def __init__(self) -> None:
        self.inner = SimpleNamespace(list=[SimpleNamespace(k=1.0)])


class Mapped:
    def __init__(self) -> None:
        self.inside = {"k": 1.0}

    def __getattr__(self, name: str) -> float:
        return self.inside[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "inside":
            object.__setattr__(self, name, value)
        else:
            self.inside[name] = value


def of_object(held: Any) -> tuple[Step, Callable[[], None]]:
    return lambda x: x * held.k, lambda: setattr(held, "k", 3.0)


def of_class() -> tuple[Step, Callable[[], None]]:
    class Held:
        k = 1.0

    held = Held()
    return lambda x: x * held.k, lambda: setattr(Held, "k", 3.0)


def of_property() -> tuple[Step, Callable[[], None]]:
    held = Computed()
    return lambda x: x * held.k, lambda: setattr(held, "half", 3.0)


def of_module() -> tuple[Step, Callable[[], None]]:
    settings = ModuleType("settings")
    settings.k = 1.0  # type: ignore[attr-defined]
    return lambda x: x * settings.k, lambda: setattr(settings, "k", 3.0)


def deep_inside() -> tuple[Step, Callable[[], None]]:
    held = Nested()
    return lambda x: x * held.inner.list[0].k, lambda: setattr(held.inner.list[0], "k", 3.0)


def of_nested_dicts() -> tuple[Step, Callable[[], None]]:
    held = {"a": {"b": [1.0, {"c": 1.0}]}}
    return lambda x: x * held["a"]["b"][1]["c"], lambda: held["a"]["b"][1].update(c=3.0)  # type: ignore[attr-defined,index]


def of_an_array() -> tuple[Step, Callable[[], None]]:
    held = np.ones(3)
    return lambda x: x * float(held[1]), lambda: held.fill(3.0)


def defaults() -> tuple[Step, Callable[[], None]]:
    held = [1.0]

    def step(x: ag.Tensor, given: list[float] = held, *, named: dict[str, float] = {"k": 1.0}) -> ag.Tensor:  # noqa: B006
        return x * given[0] + named["k"]

    def change() -> None:
        held[0] = 3.0
        step.__kwdefaults__["named"]["k"] = 4.0

    return step, change


def of_partial() -> tuple[Step, Callable[[], None]]:
    held = [1.0]
    return partial(lambda box, x: x * box[0], held), lambda: held.__setitem__(0, 3.0)


class Trainer:
    def __init__(self) -> None:
        self.k, self.shift = 1.0, 0.5
        self.last: Any = None

    def helper(self, x: ag.Tensor) -> ag.Tensor:
        return x + self.shift

    def step(self, x: ag.Tensor) -> ag.Tensor:
        self.last = "set and never read"
        return self.helper(x) * self.k

    __call__ = step


def of_method() -> tuple[Step, Callable[[], None]]:
    trainer = Trainer()
    return trainer.step, lambda: setattr(trainer, "shift", 3.0)


def of_callable() -> tuple[Step, Callable[[], None]]:
    trainer = Trainer()
    return trainer, lambda: setattr(trainer, "k", 3.0)


def another_method() -> tuple[Step, Callable[[], None]]:
    trainer = Trainer()
    return trainer.step, lambda: setattr(trainer, "helper", lambda x: x * 5.0)


class Scaled(ag.Layer):
    k = 1.0

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return x * self.k


def class_of_a_layer() -> tuple[Step, Callable[[], None]]:
    kind = type("Mine", (Scaled,), {"__module__": __name__, "k": 1.0})
    layer = kind()
    return lambda x: layer(x), lambda: setattr(kind, "k", 3.0)


def forward_of_a_class() -> tuple[Step, Callable[[], None]]:
    kind = type("Mine", (Scaled,), {"__module__": __name__, "forward": lambda self, x: x * 2.0})
    layer = kind()
    return lambda x: layer(x), lambda: setattr(kind, "forward", lambda self, x: x * 4.0)


def forward_of_a_layer() -> tuple[Step, Callable[[], None]]:
    layer = ag.ag_sequential(ag.ag_linear(3, 3))
    return lambda x: layer(x), lambda: setattr(layer[0], "forward", lambda x: x * 4.0)


READS: dict[str, Callable[[], tuple[Step, Callable[[], None]]]] = {
    "dataclass": lambda: of_object(Config()), "namespace": lambda: of_object(SimpleNamespace(k=1.0)),
    "attribute over the class's": lambda: of_object(Inherited()), "slots": lambda: of_object(Slots()),
    "arguments": lambda: of_object(Namespace(k=1.0)), "__getattr__": lambda: of_object(Mapped()),
    "class": of_class, "property": of_property, "module": of_module, "object in an object": deep_inside,
    "nested dicts": of_nested_dicts, "numpy array": of_an_array, "defaults": defaults, "partial": of_partial,
    "method": of_method, "callable": of_callable, "another method": another_method,
    "class of a layer": class_of_a_layer, "forward of a class": forward_of_a_class,
    "forward of a layer": forward_of_a_layer,
}


@pytest.mark.parametrize("make", READS.values(), ids=READS)
def test_the_first_call_after_a_change_is_the_eager_one(make: Callable[[], tuple[Step, Callable[[], None]]],
                                                        device: str) -> None:
    ag.ag_seed(3)
    step, change = make()
    captured = ag.ag_capture(step)
    for k in range(4):
        captured(ag.ag_tensor(X * k))
    kept, before = len(captured._programs), captured(ag.ag_tensor(X)).numpy()
    change()
    for k in range(4):
        x = ag.ag_tensor(X * (k + 1))
        assert captured(x).numpy().tobytes() == step(x).numpy().tobytes()
    assert captured(ag.ag_tensor(X)).numpy().tobytes() != before.tobytes()
    assert kept == 1 and len(captured._programs) == 2, "recorded once for each, and replayed otherwise"


def test_a_parameter_that_is_frozen_and_thawed(device: str) -> None:
    def trained(capture: bool) -> list[bytes]:
        ag.ag_seed(1)
        model = ag.ag_sequential(ag.ag_linear(3, 4, activation="tanh"), ag.ag_linear(4, 2))
        optimizer = ag.optimizer_adam(model, lr=0.1)

        def step(x: Any) -> None:
            with ag.with_grad_tape():
                loss = ag.ag_mean(model(x) ** 2)
            optimizer.step(ag.backward(loss))

        run = ag.ag_capture(step) if capture else step
        for k in range(12):
            model[0].W.requires_grad = not 4 <= k < 8
            run(X * (k + 1))
        return [p.numpy().tobytes() for p in model.parameters().values()]

    assert trained(True) == trained(False)


def test_what_a_step_counts_itself(caplog: pytest.LogCaptureFixture) -> None:
    """It is recorded for every call, as no replay would count; after many in vain it runs eagerly."""
    counter = Config(0.0)

    def step(x: ag.Tensor) -> ag.Tensor:
        counter.k += 1.0
        return x * counter.k

    captured = ag.ag_capture(step)
    with caplog.at_level(logging.WARNING, "ag"):
        for k in range(80):
            assert captured(ag.ag_tensor([[2.0]])).item() == 2.0 * (k + 1)
    assert [r.getMessage() for r in caplog.records if "runs uncaptured" in r.getMessage()] != []
    assert captured.program is None
