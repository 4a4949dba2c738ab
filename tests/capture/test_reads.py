"""The first call after a change of anything that a captured step reads in Python is what the eager one is."""

from __future__ import annotations

import builtins
import itertools
import queue
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from threading import Event, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.capture.guards import NameGuards
from ag.capture.reads import UNKNOWN, Name, Own, source

W = ag.ag_param([[2.0]])
Read = Callable[[], float]

# ---------------------------------------------------------------------------------------------- names

# Of each case: its name, code before the step, the number that the step reads, and the statement that changes it.
CASES = """
an object
    c = SimpleNamespace(k=1.0)
    reads c.k
    then c.k = 3.0

handed on
    c = Config()
    reads rate_of(c)
    then c.rate = 3.0

returned
    c = Config()
    def get(): return c
    reads get().rate
    then c.rate = 3.0

in slots
    class A: __slots__ = ('k',)
    a = A()
    a.k = 1.0
    reads a.k
    then a.k = 3.0

by __getattr__
    class A:
        inside = {'k': 1.0}
        def __getattr__(self, name): return self.inside[name]
    a = A()
    reads a.k
    then a.inside['k'] = 3.0

by a property
    class A:
        half = 0.5
        @property
        def k(self): return 2 * self.half
    a = A()
    reads a.k
    then a.half = 3.0

of a dict's subclass
    class A(dict): rate = 1.0
    a = A()
    reads a.rate
    then a.rate = 3.0

one of many in a dict
    a = {f'a{i}': [Config()] for i in range(80)}
    reads rate_of(a['a79'][0])
    then a['a79'][0].rate = 3.0

in an array of objects
    a = np.array([Config()], object)
    reads a[0].rate
    then a[0].rate = 3.0

made in the step
    c = Config()
    class Made:
        def __init__(self): self.rate = c.rate
        def __enter__(self): return self.rate
        def __exit__(self, *error): ...
    def read():
        with Made() as rate: return rate
    reads read()
    then c.rate = 3.0

a pattern
    c = Config()
    def read():
        match c:
            case Config(rate=found): return found
    reads read()
    then c.rate = 3.0

absent
    c = SimpleNamespace()
    reads getattr(c, 'rate', 1.0)
    then c.rate = 3.0

of a class
    class A: k = 1.0
    reads A.k
    then A.k = 3.0

of an object's class
    class A: k = 1.0
    a = A()
    reads a.k
    then A.k = 3.0

of a metaclass
    class Meta(type):
        @property
        def rate(cls): return cls.hidden
    class A(metaclass=Meta): hidden = 1.0
    reads A.rate
    then A.hidden = 3.0

a static method
    c = Config()
    class A:
        @staticmethod
        def rate(): return c.rate
    reads A.rate()
    then c.rate = 3.0

a singleton
    class A:
        one = Config()
        @classmethod
        def get(cls): return cls.one
    reads A.get().rate
    then A.one.rate = 3.0

a special method
    class A:
        def __float__(self): return 1.0
    a = A()
    reads a
    then A.__float__ = lambda self: 3.0

beside a class without module
    c, a = Config(), type('A', (), {'__module__': property(id), 'k': 1.0})()
    reads c.rate * a.k
    then c.rate = 3.0

of a class without module
    A = type('A', (), {'__module__': property(id), 'k': 1.0})
    a = A()
    reads a.k
    then A.k = 3.0

a variable around
    k = 1.0
    reads k
    then nonlocal k; k = 3.0

the second closure
    boxes = [{'k': 1.0}, {'k': 1.0}]
    first, second = [(lambda b: lambda: b['k'])(b) for b in boxes]
    reads first() * second()
    then boxes[1].update(k=3.0)

a default by name
    c = Config()
    def read(*, c=c): return c.rate
    reads read()
    then c.rate = 3.0

a partial
    c = Config()
    read = partial(rate_of, config=c)
    reads read()
    then c.rate = 3.0

a method
    a = Runs()
    reads a.run()
    then a.config.rate = 3.0

another method
    a = Runs()
    reads a.run()
    then a.helper = lambda c: 3.0

dispatched
    c = Config()
    @singledispatch
    def read(x): return c.rate
    reads read(3)
    then c.rate = 3.0

a module
    m = module('tests_m', k=1.0)
    reads m.k
    then m.k = 3.0

a class of a submodule
    m = module('tests_m', sub=module('tests_m.sub', A=type('A', (), {'__module__': 'tests_m.sub', 'k': 1.0})))
    reads m.sub.A.k
    then m.sub.A.k = 3.0

an import inside
    m = module('tests_m', k=1.0)
    def read():
        from tests_m import k
        return k
    reads read()
    then m.k = 3.0

an absent global
    def read():
        try: return NOWHERE
        except NameError: return 1.0
    reads read()
    then global NOWHERE; NOWHERE = 3.0

a context variable
    v = ContextVar('v', default=1.0)
    reads v.get()
    then v.set(3.0)

given to a layer
    class A(ag.Layer):
        def forward(self, c): return rate_of(c)
    a, c = A(), Config()
    reads a(c)
    then c.rate = 3.0

the type of a layer
    class A(ag.Layer):
        k = 1.0
        @property
        def rate(self): return type(self).k
    a = A()
    reads a.rate
    then A.k = 3.0

another class of a layer
    class A(ag.Layer):
        def rate(self): return 1.0
    class B(A):
        def rate(self): return 3.0
    a = A()
    reads a.rate()
    then a.__class__ = B

forward of a layer's class
    class A(ag.Layer):
        def forward(self, x): return 1.0
    a = A()
    reads a(0.0)
    then A.forward = lambda self, x: 3.0

forward of a layer
    class A(ag.Layer):
        def forward(self, x): return 1.0
    a = ag.ag_sequential(A())
    reads a(0.0)
    then a[0].forward = lambda x: 3.0

absent from a layer
    class A(ag.Layer):
        def rate(self): return getattr(self, 'k', 1.0)
    a = A()
    reads a.rate()
    then a.k = 3.0

absent from a layer's class
    class A(ag.Layer):
        def rate(self): return getattr(self, 'k', 1.0)
    a = A()
    reads a.rate()
    then A.k = 3.0

ten levels deep
    a = inner = {'k': 1.0}
    for _ in range(9): a = {'in': a}
    def read():
        x = a
        while 'in' in x: x = x['in']
        return x['k']
    reads read()
    then inner['k'] = 3.0

a long list
    a = [0.0] * 2000
    reads 2000 / len(a)
    then a.extend(a)

deque
    a = deque([1.0])
    reads a[0]
    then a[0] = 3.0

ChainMap
    a = ChainMap({'k': 1.0})
    reads a['k']
    then a['k'] = 3.0

numpy array
    a = np.ones(3)
    reads a[1]
    then a.fill(3.0)

subclass of arrays
    class A(np.ndarray): ...
    a = np.ones(1).view(A)
    reads a[0]
    then a[0] = 3.0

array
    a = array('d', [1.0])
    reads a[0]
    then a[0] = 3.0

MappingProxyType
    d = {'k': 1.0}
    a = MappingProxyType(d)
    reads a['k']
    then d['k'] = 3.0

values
    d = {'k': 1.0}
    a = d.values()
    reads next(iter(a))
    then d['k'] = 3.0

the last default
    fs = [lambda c=[1.0]: c[0] for _ in range(3)]
    reads fs[0]() * fs[2]()
    then fs[2].__defaults__[0][0] = 3.0
"""
SHARED = """
from array import array
from collections import ChainMap, deque
from contextvars import ContextVar
from functools import partial, singledispatch
from types import MappingProxyType, SimpleNamespace

import numpy as np

import ag

class Config:
    rate = 1.0
    def __init__(self): self.rate = 1.0

class Runs:
    def __init__(self): self.config, self.last = Config(), None
    def helper(self, c): return c.rate
    def run(self):
        self.last = "set and never read"
        return self.helper(self.config)

def rate_of(config): return config.rate
"""


def module(name: str, **values: object) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(values)
    return made


def cases() -> Iterator[object]:
    """Of each case the functions that read and change what stands in variables around them, in a module of its own."""
    for block in CASES.strip().split("\n\n"):
        title, *before, reads, change = block.splitlines()
        code = [*before, f"    def read_it(): return float({reads.removeprefix('    reads ')})", "    def change_it():",
                f"        {change.removeprefix('    then ')}", "    return read_it, change_it"]
        yield pytest.param("\n".join([SHARED, "def make():", *code]), id=title)


@pytest.mark.parametrize("code", [*cases()])
def test_the_first_call_after_a_change_is_the_eager_one(code: str) -> None:
    names: dict[str, Any] = {"__name__": "tests_case", "module": module}
    exec(code, names)
    read, change = names["make"]()
    step = ag.ag_capture(lambda x: ag.ag_sum(W * x * read()))
    assert [step(np.array([[k]])).item() for k in (1.0, 2.0, 3.0, 4.0)] == [2.0, 4.0, 6.0, 8.0]
    change()
    rate = read()
    assert rate != 1.0
    assert [step(np.array([[k]])).item() for k in (1.0, 2.0, 3.0, 4.0)] == [2 * k * rate for k in (1.0, 2.0, 3.0, 4.0)]
    assert len(step._programs) == 2, "recorded once for each, and replayed otherwise"


class Config:
    def __init__(self) -> None:
        self.rate, self.rng, self.draw = 1.0, np.random.default_rng(0), random.Random(0).random


class Lazy:
    @cached_property
    def rate(self) -> float:
        return 1.0

    def read(self) -> float:
        if not hasattr(self, "made"):
            self.made = 1.0
        return self.rate * self.made


class LazyLayer(ag.Layer):
    made: float
    read = Lazy.read
    rate = 1.0


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
    names = [f"a{i}" for i in range(200)]
    held = [SimpleNamespace(**dict.fromkeys(names, 1.0)) for _ in range(100)]
    read = eval("lambda x: " + "+".join(f"x.{name}" for name in names))
    with expect_error("a step that reads too many names", ag.CaptureError, "more than 10,000 names"):
        ag.ag_capture(lambda x: ag.ag_sum(W * x * read(held[0])))(np.array([[1.0]]))


def test_attributes_that_are_only_written_may_change() -> None:
    """Also those of an object that is handed on, where the step reads others."""
    config, rate_of = SimpleNamespace(rate=1.0), lambda c: c.rate

    def step(x: ag.Tensor) -> ag.Tensor:
        config.last = x.shape
        return ag.ag_sum(W * x * rate_of(config))

    captured = ag.ag_capture(step)
    for k in range(6):
        config.count = k
        captured(np.array([[float(k)]]))
    assert len(captured._programs) == 1


# ---------------------------------------------------------------------------------------------- guards of names


class Thing:
    k: float


def noted(*names: Name) -> NameGuards:
    meanings = NameGuards([])
    for name in names:
        meanings.add(name)
    meanings.close()
    return meanings


def test_another_object_in_the_same_memory() -> None:
    things = [Thing() for _ in range(1000)]  # fill the memory around it, so that its own is what is handed out next
    place = {"k": things.pop(500)}
    meanings, number = noted(Name(place, "k", place["k"])), id(place["k"])
    assert meanings.change() is None
    place.clear()
    while id(things[-1]) != number and len(things) < 2000:
        things.append(Thing())
    place["k"] = things[-1]
    assert id(place["k"]) == number
    assert meanings.change() == "k was an object that is gone and is a Thing"


def test_an_equal_value() -> None:
    place = {"k": [1.5]}
    meanings = noted(Name(place, "k", place["k"]))
    place["k"] = [float("1.5")]
    assert meanings.change() is None
    place["k"] = [2.5]
    assert meanings.change() == "k was a list and is a list"


class Schedule:
    rates: list[float]


@pytest.mark.parametrize("of", ["a global", "an attribute"])
def test_an_equal_list_that_changes_later(of: str) -> None:
    config = Schedule()
    config.rates = rates = [1.0, 2.0]

    def step(x: ag.Tensor) -> ag.Tensor:
        return ag.ag_sum(W * x * sum(config.rates if of == "an attribute" else rates))

    captured, x = ag.ag_capture(step), ag.ag_tensor([[1.0]])
    for k in range(12):
        if k in (3, 6):
            config.rates = rates = [*rates]
        if k in (5, 8):
            rates.append(3.0)
        assert captured(x).item() == step(x).item()
    assert captured._in_vain == 0  # it is replayed


def test_none_instead_of_an_object_that_is_gone() -> None:
    teacher: Thing | None = Thing()

    def step(x: ag.Tensor) -> ag.Tensor:
        return ag.ag_sum(W * x * (3.0 if teacher is None else 1.0))

    captured, x = ag.ag_capture(step), ag.ag_tensor([[1.0]])
    for k in range(8):
        if k == 3:
            teacher = None
        assert captured(x).item() == (2.0 if k < 3 else 6.0)


def test_a_place_that_is_gone() -> None:
    """With the step it is another one in each call; later nobody can read there as before."""
    thing, other = Thing(), Thing()
    thing.k = other.k = 1.0
    meanings = NameGuards([])
    for x in (thing, other):
        meanings.add(Name(Own(x), "k", 1.0))
    del x, other
    meanings.close()
    assert meanings.change() is None
    del thing
    assert meanings.change() == "k was 1.0 and is nothing"


# ---------------------------------------------------------------------------------------------- sources


def forever() -> Iterator[float]:
    while True:
        yield 1.0


def filled() -> queue.Queue[float]:
    q: queue.Queue[float] = queue.Queue()
    for k in range(40):
        q.put(float(k))
    return q


class Noisy(ag.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def noise(self) -> float:
        return float(self.rng.random())


def of(value: Any, read: Callable[[Any], Any]) -> Callable[[], Read]:
    """A function that makes a step's number from something in a variable around it."""
    def make() -> Read:
        held = value()
        return lambda: float(read(held))

    return make


TAKES: dict[str, Callable[[], Read]] = {
    "random": lambda: lambda: random.random(), "randint": lambda: lambda: random.randint(0, 9),
    "a generator of Python": of(lambda: random.Random(0), lambda r: r.gauss(0, 1)),
    "its method": of(lambda: random.Random(0).random, lambda draw: draw()),
    "the system's": of(random.SystemRandom, lambda r: r.random()),
    "numpy.random": lambda: lambda: np.random.rand(),  # noqa: NPY002
    "a generator of numpy": of(lambda: np.random.default_rng(0), lambda r: r.normal()),
    "a Mersenne Twister": of(lambda: np.random.Generator(np.random.MT19937(0)), lambda r: r.random()),
    "RandomState": of(lambda: np.random.RandomState(0), lambda r: r.rand()),
    "the method of one": of(lambda: np.random.default_rng(0).random, lambda draw: draw()),
    "in a list": of(lambda: [np.random.default_rng(0)], lambda held: held[0].random()),
    "in a partial": of(lambda: partial(np.random.default_rng(0).uniform, 1.0), lambda f: f(2.0)),
    "of an object": of(Config, lambda c: c.rng.random()), "of an object, a method": of(Config, lambda c: c.draw()),
    "of a layer": of(Noisy, lambda layer: layer.noise()), "a list's iterator": of(lambda: iter([1.0] * 40), next),
    "a dict's": of(lambda: iter({1.0: 2, 3.0: 4}), next), "count": of(itertools.count, next),
    "a generator": of(forever, next), "zip": of(lambda: zip([1.0], [2.0], strict=True), lambda z: next(z)[0]),
    "cycle": of(lambda: itertools.cycle([1.0, 2.0]), next), "a queue": of(filled, lambda q: q.get()),
}


@pytest.mark.parametrize("make", TAKES.values(), ids=TAKES)
def test_what_is_taken_is_refused(make: Callable[[], Read]) -> None:
    read = make()
    with expect_error("a captured step takes from a generator", ag.CaptureError, "take", "a replay would not",
                      "before the step"):
        ag.ag_capture(lambda x: ag.ag_sum(W * x) * read())(np.ones((1, 1)))


def test_what_is_seldom_taken_is_refused_when_it_is() -> None:
    """Also where the first calls, which are compared, come to the same numbers."""
    rng = np.random.default_rng(0)
    with pytest.raises(ag.CaptureError, match="takes something from rng"):
        ag.ag_capture(lambda x: ag.ag_sum(W * x) * (2.0 if rng.random() < 1e-9 else 1.0))(np.ones((1, 1)))


@pytest.mark.parametrize("hold", [lambda: np.random.default_rng(0), lambda: random.Random(0), lambda: iter([1]),
                                  lambda: itertools.repeat(1.0), filled, lambda: deque([1.0])])
def test_what_is_only_held_is_no_matter(hold: Callable[[], Any]) -> None:
    held = hold()
    step = ag.ag_capture(lambda x: ag.ag_sum(W * x) * (1.0 if held is not None else 2.0))
    assert [step(np.full((1, 1), float(k))).item() for k in range(6)] == [2.0 * k for k in range(6)]
    assert step.program is not None


def test_what_others_take_meanwhile_is_no_matter() -> None:
    """Another thread draws all the time from a generator that the step does not reach."""
    other, done = np.random.default_rng(0), Event()

    def draw() -> None:
        while not done.is_set():
            other.random()

    thread = Thread(target=draw)
    thread.start()
    try:
        step = ag.ag_capture(lambda x: ag.ag_sum(W * x))
        assert [step(np.full((1, 1), float(k))).item() for k in range(5)] == [2.0 * k for k in range(5)]
    finally:
        done.set()
        thread.join()


def test_what_is_no_source() -> None:
    assert source(np.random.default_rng(0)) is not None
    assert [x for x in ({"a": 1}, [1], "a", 1.0, None, np, len, forever, np.ones(2), ag) if source(x) is not None] == []


def test_states_that_do_not_show() -> None:
    for x in (forever(), zip(), map(abs, ()), enumerate(()), itertools.cycle(()), random.SystemRandom()):
        state = source(x)
        assert state is not None and state() is UNKNOWN


# ------------------------------------------------------------------------------------------ what is out of sight


class Trainer:
    temperature = 1.0


class OtherTrainer(Trainer):
    temperature = 3.0


class Rate:
    def rate(self) -> float:
        return 1.0


class Slower:
    def rate(self) -> float:
        return 0.5


class Mixed(Rate):
    pass


class OtherMixed(Rate):
    pass


def ones_times(factor: Callable[[], float]) -> Callable[[ag.Tensor], ag.Tensor]:
    return lambda x: x * factor()


def weakly() -> tuple[Callable[[], float], Callable[[], None]]:
    trainer = Trainer()
    there = weakref.ref(trainer)
    return lambda: there().temperature, lambda: setattr(trainer, "temperature", 5.0)


def weakly_another() -> tuple[Callable[[], float], Callable[[], None]]:
    trainers = [Trainer()]
    there = weakref.ref(trainers[0])
    return lambda: there().temperature if there() else 9.0, trainers.clear


def by_weak_values() -> tuple[Callable[[], float], Callable[[], None]]:
    kept = [Trainer(), OtherTrainer()]
    known: weakref.WeakValueDictionary[str, Trainer] = weakref.WeakValueDictionary({"a": kept[0]})
    return lambda: known["a"].temperature, lambda: known.__setitem__("a", kept[1])


def by_weak_keys() -> tuple[Callable[[], float], Callable[[], None]]:
    trainer = Trainer()
    known: weakref.WeakKeyDictionary[Trainer, float] = weakref.WeakKeyDictionary({trainer: 2.0})
    return lambda: known[trainer], lambda: known.__setitem__(trainer, 4.0)


def by_weak_set() -> tuple[Callable[[], float], Callable[[], None]]:
    kept = [Trainer(), Trainer()]
    known = weakref.WeakSet(kept[:1])
    return lambda: float(len(known)), lambda: known.add(kept[1])


def by_class() -> tuple[Callable[[], float], Callable[[], None]]:
    trainer = Trainer()
    return lambda: trainer.temperature, lambda: setattr(trainer, "__class__", OtherTrainer)


def by_bases() -> tuple[Callable[[], float], Callable[[], None]]:
    mixed = type("Mixed", (Rate,), {"__module__": __name__})
    return mixed().rate, lambda: setattr(mixed, "__bases__", (Slower,))


def by_code() -> tuple[Callable[[], float], Callable[[], None]]:
    def rate() -> float:
        return 1.0

    def other() -> float:
        return 7.0

    return lambda: rate(), lambda: setattr(rate, "__code__", other.__code__)


def by_module() -> tuple[Callable[[], float], Callable[[], None]]:
    module, state = types.ModuleType("of_the_user"), {"rate": 1.0}
    module.__getattr__ = lambda name: state[name]  # type: ignore[method-assign]
    return lambda: module.rate, lambda: state.update(rate=6.0)


def by_builtins() -> tuple[Callable[[], float], Callable[[], None]]:
    builtins.rate_of_a_test = 1.0  # type: ignore[attr-defined]
    return (lambda: rate_of_a_test,  # type: ignore[name-defined] # noqa: F821
            lambda: setattr(builtins, "rate_of_a_test", 8.0))


OUT_OF_SIGHT = (weakly, weakly_another, by_weak_values, by_weak_keys, by_weak_set, by_class, by_bases, by_code,
                by_module, by_builtins)


@pytest.mark.parametrize("way", OUT_OF_SIGHT, ids=lambda way: way.__name__)
def test_what_stands_in_no_dict_of_a_name(way: Callable[[], Any]) -> None:
    factor, change = way()
    step = ones_times(factor)
    captured, x = ag.ag_capture(step), ag.ag_tensor([1.0, 2.0])
    for k in range(6):
        if k == 4:
            assert captured._in_vain == 0  # it is replayed
            change()
        assert captured(x).numpy().tolist() == step(x).numpy().tolist()


@pytest.mark.parametrize("kind", ["a list", "a dict", "an attribute", "a global"])
def test_equal_numbers_in_new_objects_are_replayed(kind: str) -> None:
    table: dict[str, Any] = {"rate": 0.5, "name": "a"}
    rates, own = [0.5, 1.5], SimpleNamespace(rate=0.5)

    def read() -> float:
        return {"a list": rates[0], "a dict": table["rate"], "an attribute": own.rate, "a global": 0.5}[kind]

    captured, x = ag.ag_capture(lambda x: x * read()), ag.ag_tensor([1.0, 2.0])
    for k in range(20):
        rate = float(str(0.5 if k < 12 else 0.25))  # a new object each time
        rates[:], table["rate"], own.rate = [rate, 1.5], rate, rate
        wanted = 0.5 if kind == "a global" else rate
        assert captured(x).numpy().ravel().tolist() == [wanted, 2 * wanted]
    assert captured._in_vain == 0 and len(captured._programs) == 2
