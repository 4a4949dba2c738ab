"""Names that a captured step reads by way of other code, or that are not there yet: recorded anew after a change."""

from __future__ import annotations

import array
import sys
from collections import ChainMap
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, cached_property, partial, singledispatch
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

W = ag.ag_param([[2.0]])
Read = Callable[[], float]
Change = Callable[[], object]
Case = Callable[[], tuple[Read, Change]]


class Config:
    rate = 1.0

    def __init__(self) -> None:
        self.rate = 1.0


class Special(np.ndarray[Any, np.dtype[Any]]):
    pass


def rate_of(config: Any) -> float:
    return float(config.rate)


def to(config: Any, name: str = "rate") -> Change:
    return lambda: setattr(config, name, 3.0)


def handed_on() -> tuple[Read, Change]:
    config = Config()
    return lambda: rate_of(config), to(config)


def beside_an_object_without_a_module() -> tuple[Read, Change]:
    """Compiled functions of Cython have a class whose ``__module__`` is no text."""
    config, strange = Config(), type("Strange", (), {"__module__": property(lambda self: "m"), "rate": 1.0})()
    return lambda: config.rate * strange.rate, to(config)


def of_a_class_without_a_module() -> tuple[Read, Change]:
    strange = type("Strange", (), {"__module__": property(lambda self: "m"), "rate": 1.0})
    made = strange()
    return lambda: made.rate, to(strange)


def returned() -> tuple[Read, Change]:
    config = Config()

    def get() -> Config:
        return config

    return lambda: get().rate, to(config)


def from_an_attribute() -> tuple[Read, Change]:
    class Trainer:
        def __init__(self) -> None:
            self.config = Config()

        def run(self) -> float:
            return self.scale(self.config)

        def scale(self, c: Config) -> float:
            return c.rate

    trainer = Trainer()
    return trainer.run, to(trainer.config)


def from_a_default() -> tuple[Read, Change]:
    config = Config()

    def read(*, c: Config = config) -> float:
        return c.rate

    return lambda: read(), to(config)


def from_a_partial() -> tuple[Read, Change]:
    config = Config()
    read = partial(rate_of, config=config)
    return lambda: read(), to(config)


def from_a_dict() -> tuple[Read, Change]:
    configs = {f"a{i}": [Config()] for i in range(80)}
    return lambda: rate_of(configs["a79"][0]), to(configs["a79"][0])


def given_to_a_layer() -> tuple[Read, Change]:
    class Own(ag.Layer):
        def forward(self, c: Any) -> Any:
            return rate_of(c)

    layer, config = Own(), Config()
    return lambda: layer(config), to(config)  # type: ignore[arg-type,return-value]


def of_the_second_closure() -> tuple[Read, Change]:
    def make(box: dict[str, float]) -> Read:
        return lambda: box["k"]

    boxes = [{"k": 1.0}, {"k": 1.0}]
    first, second = map(make, boxes)
    return lambda: first() * second(), lambda: boxes[1].update(k=3.0)


def of_the_last_default() -> tuple[Read, Change]:
    reads = [lambda c=[1.0]: c[0] for _ in range(3)]
    return lambda: reads[0]() * reads[2](), lambda: reads[2].__defaults__[0].__setitem__(0, 3.0)


def of_a_class() -> tuple[Read, Change]:
    kind = type("Kind", (Config,), {"__module__": __name__, "rate": 1.0})
    return lambda: kind.rate, to(kind)


def of_a_static_method() -> tuple[Read, Change]:
    config = Config()

    class Tools:
        @staticmethod
        def rate() -> float:
            return config.rate

    return lambda: Tools.rate(), to(config)


def of_a_singleton() -> tuple[Read, Change]:
    class Single:
        one = Config()

        @classmethod
        def get(cls) -> Config:
            return cls.one

    return lambda: Single.get().rate, to(Single.one)


def of_a_metaclass() -> tuple[Read, Change]:
    class Meta(type):
        @property
        def rate(cls) -> float:
            return cls.hidden  # type: ignore[attr-defined,no-any-return]

    class Kind(metaclass=Meta):
        hidden = 1.0

    return lambda: Kind.rate, to(Kind, "hidden")


def of_an_object_made_in_the_step() -> tuple[Read, Change]:
    config = Config()

    class Made:
        def __init__(self) -> None:
            self.rate = config.rate

        def __enter__(self) -> float:
            return self.rate

        def __exit__(self, *error: object) -> None: ...

    def read() -> float:
        with Made() as rate:
            return rate

    return read, to(config)


def of_the_type_of_a_layer() -> tuple[Read, Change]:
    class Own(ag.Layer):
        k = 1.0

        @property
        def rate(self) -> float:
            return float(Kind.rate) * type(self).k

    class Kind:
        rate = 1.0

    layer = Own()
    return lambda: layer.rate, lambda: (to(Own, "k")(), to(Kind)())


def module(name: str, **values: object) -> Any:
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(values)
    return made


def of_a_submodule() -> tuple[Read, Change]:
    pkg = module("tests_pkg", sub=module("tests_pkg.sub", rate=1.0, Config=type("Config", (), {
        "__module__": "tests_pkg.sub", "k": 1.0})))
    return lambda: pkg.sub.rate * pkg.sub.Config.k, lambda: (to(pkg.sub)(), to(pkg.sub.Config, "k")())


def imported_within() -> tuple[Read, Change]:
    found = module("tests_settings", rate=1.0)

    def read() -> float:
        from tests_settings import rate  # type: ignore[import-not-found]
        return float(rate)

    return read, to(found)


def of_a_subclass_of_dict() -> tuple[Read, Change]:
    class Settings(dict[str, float]):
        rate = 1.0

    settings = Settings()
    settings.rate = 1.0
    return lambda: settings.rate, to(settings)


def in_a(container: Any, item: Callable[[Any], Any], change: Callable[[Any], object]) -> tuple[Read, Change]:
    return lambda: float(item(container)), lambda: change(container)


def behind(view: Callable[[dict[str, float]], Any], item: Callable[[Any], float]) -> tuple[Read, Change]:
    known = {"rate": 1.0}
    shown = view(known)
    return lambda: item(shown), lambda: known.update(rate=3.0)


def of_a_context() -> tuple[Read, Change]:
    held = ContextVar("held", default=1.0)
    return lambda: held.get(), lambda: held.set(3.0)


def deep() -> tuple[Read, Change]:
    inner: dict[str, Any] = {"rate": 1.0}
    outer = inner
    for _ in range(9):
        outer = {"in": outer}

    def read() -> float:
        found = outer
        while "in" in found:
            found = found["in"]
        return float(found["rate"])

    return read, lambda: inner.update(rate=3.0)


def objects_in_an_array() -> tuple[Read, Change]:
    held = np.array([Config()], object)
    return lambda: held[0].rate, lambda: setattr(held[0], "rate", 3.0)


def absent() -> tuple[Read, Change]:
    held = SimpleNamespace()
    return lambda: float(getattr(held, "rate", 1.0)), to(held)


def absent_from_a_layer() -> tuple[Read, Change]:
    class Own(ag.Layer):
        def read(self) -> float:
            return float(getattr(self, "boost", 1.0))

    layer = Own()
    return lambda: layer.read(), to(layer, "boost")


def absent_from_the_class_of_a_layer() -> tuple[Read, Change]:
    read, _ = absent_from_a_layer()
    return read, to(type(read.__closure__[0].cell_contents), "boost")  # type: ignore[attr-defined]


def absent_from_globals() -> tuple[Read, Change]:
    globals().pop("NOWHERE", None)

    def read() -> float:
        try:
            return NOWHERE  # type: ignore[name-defined,no-any-return]
        except NameError:
            return 1.0

    return read, lambda: globals().update(NOWHERE=3.0)


def of_another_class() -> tuple[Read, Change]:
    class One(ag.Layer):
        def rate(self) -> float:
            return 1.0

    class Other(One):
        def rate(self) -> float:
            return 3.0

    layer = One()
    return lambda: layer.rate(), lambda: setattr(layer, "__class__", Other)


def of_a_special_method() -> tuple[Read, Change]:
    class Kind:
        def __float__(self) -> float:
            return 1.0

    held = Kind()
    return lambda: float(held), lambda: setattr(Kind, "__float__", lambda self: 3.0)


def of_a_pattern() -> tuple[Read, Change]:
    config = Config()

    def read() -> float:
        match config:
            case Config(rate=found):
                return found
        return 0.0

    return read, to(config)


def dispatched() -> tuple[Read, Change]:
    config = Config()

    @singledispatch
    def read(x: object) -> float:
        return config.rate

    return lambda: read(3), to(config)


def grown() -> tuple[Read, Change]:
    data = [0.0] * 2000
    return lambda: 2000 / len(data), lambda: data.extend(data)


CASES: list[Case] = [
    handed_on, beside_an_object_without_a_module, of_a_class_without_a_module, returned, from_an_attribute,
    from_a_default, from_a_partial, from_a_dict, given_to_a_layer,
    of_the_second_closure, of_the_last_default, of_a_class, of_a_static_method, of_a_singleton, of_a_metaclass,
    of_an_object_made_in_the_step, of_the_type_of_a_layer, of_a_submodule, imported_within, of_a_subclass_of_dict,
    of_a_context, deep, objects_in_an_array, absent, absent_from_a_layer, absent_from_the_class_of_a_layer,
    absent_from_globals, of_another_class, of_a_special_method, of_a_pattern, dispatched, grown]
CONTAINERS: dict[str, Case] = {
    "ChainMap": lambda: in_a(ChainMap({"k": 1.0}), lambda x: x["k"], lambda x: x.update(k=3.0)),
    "array": lambda: in_a(array.array("d", [1.0]), lambda x: x[0], lambda x: x.__setitem__(0, 3.0)),
    "bytearray": lambda: in_a(bytearray([1]), lambda x: x[0], lambda x: x.__setitem__(0, 3)),
    "memoryview": lambda: in_a(memoryview(bytearray([1])), lambda x: x[0], lambda x: x.__setitem__(0, 3)),
    "subclass of arrays": lambda: in_a(np.ones(1).view(Special), lambda x: x[0], lambda x: x.__setitem__(0, 3.0)),
    "MappingProxyType": lambda: behind(MappingProxyType, lambda x: x["rate"]),
    "values": lambda: behind(lambda known: known.values(), lambda x: next(iter(x))),
    "items": lambda: behind(lambda known: known.items(), lambda x: max(x)[1])}


@pytest.mark.parametrize("make", [pytest.param(make, id=make.__name__) for make in CASES] + [
    pytest.param(make, id=name) for name, make in CONTAINERS.items()])
def test_the_first_call_after_a_change_is_the_eager_one(make: Case) -> None:
    read, change = make()
    step = ag.ag_capture(lambda x: ag.ag_sum(W * x * read()))
    assert [step(np.array([[k]])).item() for k in (1.0, 2.0, 3.0, 4.0)] == [2.0, 4.0, 6.0, 8.0]
    change()
    rate = read()
    assert rate != 1.0
    assert [step(np.array([[k]])).item() for k in (1.0, 2.0, 3.0, 4.0)] == [2 * k * rate for k in (1.0, 2.0, 3.0, 4.0)]
    assert len(step._programs) == 2


# ---------------------------------------------------------------------------------------------- no false alarms


class Lazy:
    def __init__(self) -> None:
        self.config = Config()

    @cached_property
    def rate(self) -> float:
        return self.config.rate

    def read(self) -> float:
        if not hasattr(self, "made"):
            self.made = 1.0
        return self.rate * self.made


class LazyLayer(ag.Layer):
    made: float

    def read(self) -> float:
        if not hasattr(self, "made"):
            self.made = 1.0
        return self.made


@cache
def cached() -> float:
    return 1.0


def makes_a_layer() -> float:
    class Own(ag.Layer):
        def __init__(self) -> None:
            self.config = Config()

        def read(self) -> float:
            return self.config.rate

    return Own().read()


@pytest.mark.parametrize("make", [lambda: Lazy().read, lambda: LazyLayer().read, lambda: cached, lambda: makes_a_layer],
                         ids=["lazy attributes", "lazy attributes of a layer", "a cache", "a layer made in the step"])
def test_what_the_step_makes_itself_is_replayed(make: Callable[[], Read]) -> None:
    read = make()
    captured = ag.ag_capture(lambda x: ag.ag_sum(W * x * read()))
    for k in range(5):
        assert captured(np.array([[float(k)]])).item() == 2.0 * k
    assert captured._in_vain == 0 and len(captured._programs) <= 2, "recorded, and again with what it made; replayed"


def test_names_without_number_are_refused() -> None:
    held = [type("Many", (), {"__module__": __name__, **{f"a{i}": float(i) for i in range(200)}})() for _ in range(100)]
    for x in held:
        vars(x).update({f"a{i}": float(i) for i in range(200)})
    read = eval("lambda x: " + "+".join(f"x.a{i}" for i in range(200)))
    with expect_error("a step that reads too many names", ag.CaptureError, "more than 10,000 names"):
        ag.ag_capture(lambda x: ag.ag_sum(W * x * read(held[0])))(np.array([[1.0]]))


def test_attributes_that_are_only_written_may_change() -> None:
    """Also those of an object that is handed on, where the step reads others."""
    config = Config()

    def step(x: ag.Tensor) -> ag.Tensor:
        config.last = x.shape  # type: ignore[attr-defined]
        return ag.ag_sum(W * x * rate_of(config))

    captured = ag.ag_capture(step)
    for k in range(6):
        config.count = k  # type: ignore[attr-defined]
        captured(np.array([[float(k)]]))
    assert len(captured._programs) == 1
