"""The compiled guard says "nothing has changed" only where Python finds no change either."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ag
from ag.autograd.watched import MISSING
from ag.capture import guards
from ag.capture.guards import HAS_CODE, compiled_guard, is_quick
from ag.capture.reads import Own

needs_code = pytest.mark.skipif(not HAS_CODE, reason="the comparisons of replays were not compiled")


class Thing:
    """Has an attribute of its own, and one of its class."""

    shared = 1

    def __init__(self) -> None:
        self.rate = object()


class Slotted:
    """Has nothing but slots."""

    __slots__ = ("x",)

    def __init__(self, x: object) -> None:
        self.x = x


def of(**rows: Any) -> Callable[[], bool]:
    """Return the guard of these rows."""
    given = {"slots": [], "contents": [], "names": [], "single": [], "gone": [], **rows}
    return compiled_guard(**given)


def names_row(place: object, own: dict[str, object], names: list[str], absent: set[str]) -> tuple[Any, ...]:
    return place, names, [id(own.get(name, MISSING)) for name in names], frozenset(absent), tuple(absent), None


@needs_code
def test_slots() -> None:
    things = [Slotted(None), Slotted(True)]
    holds = of(slots=[(Slotted.__dict__["x"], things, [None, True])])
    assert holds()
    things[1].x = 1  # which is equal
    assert not holds()
    things[1].x = True
    assert holds()
    called = of(slots=[(Slotted.__dict__["x"], things[:1], ["inner_W"])])
    assert not called()
    things[0].x = "".join(["inner", "_W"])  # another string, which is equal
    assert called() and not holds()
    things[0].x = "inner_b"
    assert not called()
    del things[0].x
    assert not holds()


@needs_code
@pytest.mark.parametrize("absent", [{"gone", "new"}, {f"name{i}" for i in range(50)} | {"new"}], ids=["few", "many"])
@pytest.mark.parametrize("kind", ["globals", "object", "class"])
def test_names(kind: str, absent: set[str]) -> None:
    thing, space = Thing(), {"rate": object(), **{f"other{i}": i for i in range(10)}}
    place, own = {"globals": (space, space), "object": (Own(ref(thing)).owner, vars(thing)),
                  "class": (Thing, vars(Thing))}[kind]

    def set_(name: str, value: object) -> None:
        if kind == "globals":
            space[name] = value
        else:
            setattr(thing if kind == "object" else Thing, name, value)

    def unset(name: str) -> None:
        space.pop(name) if kind == "globals" else delattr(thing if kind == "object" else Thing, name)

    name = "shared" if kind == "class" else "rate"
    before = own[name]
    holds = of(names=[names_row(place, dict(own), [name, "nowhere"], absent)])
    assert holds()
    set_(name, object())
    assert not holds()
    set_(name, before)
    assert holds()
    set_("nowhere", 1)
    assert not holds()
    unset("nowhere")
    assert holds()
    set_("unrelated", 1)
    assert holds()
    set_("new", 1)
    assert not holds()
    unset("new")
    unset("unrelated")
    assert holds()


@needs_code
def test_a_place_that_is_gone() -> None:
    thing = Thing()
    holds = of(names=[names_row(ref(thing), vars(thing), ["rate"], set())])
    assert holds()
    del thing
    assert not holds()


@needs_code
def test_an_object_without_a_dict_has_no_names() -> None:
    slotted = Slotted(1)
    assert of(names=[names_row(slotted, {}, ["nowhere"], {"x", "y"})])()
    assert not of(names=[names_row(slotted, {"x": 1}, ["x"], set())])()


@needs_code
def test_keys_whose_hash_runs_code_are_left_to_python() -> None:
    class Odd(str):
        def __hash__(self) -> int:
            raise AssertionError("asked")

        __eq__ = str.__eq__

    space: dict[object, object] = {"rate": 1, 3: 4}
    assert not of(names=[names_row(space, {"rate": 1}, ["rate"], {"a", "b", "c", "d"})])()
    del space[3]
    assert of(names=[names_row(space, {"rate": 1}, ["rate"], {"a", "b", "c", "d"})])()


@needs_code
def test_single_names() -> None:
    variable: ContextVar[object] = ContextVar("variable")
    value, other = object(), object()

    def outer() -> Callable[[], object]:
        kept: object = value

        def inner(change: object = None, *, delete: bool = False) -> object:
            nonlocal kept
            if delete:
                del kept
                return None
            kept = change or kept
            return kept
        return inner

    inner: Any = outer()
    (cell,) = inner.__closure__
    slotted = Slotted(value)
    holds = of(single=[([cell, variable, slotted, inner], ["cell_contents", "variable", "x", "__defaults__"],
                         [id(value), id(MISSING), id(value), id(inner.__defaults__)])])
    assert holds()
    inner(other)
    assert not holds()
    inner(value)
    assert holds()
    token = variable.set(other)
    assert not holds()
    variable.reset(token)
    slotted.x = other
    assert not holds()
    slotted.x = value
    inner.__defaults__ = (1,)
    assert not holds()
    cell_only = of(single=[([cell], ["cell_contents"], [id(value)])])
    assert cell_only()
    inner(delete=True)
    assert not cell_only()
    assert of(single=[([cell], ["cell_contents"], [id(MISSING)])])()


@needs_code
def test_an_error_of_an_attribute_reaches_the_caller() -> None:
    class Interrupted:
        @property
        def x(self) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        of(single=[([Interrupted()], ["x"], [0])])()


@needs_code
def test_contents() -> None:
    a, b = object(), object()
    numbers, table = [a, b], {"a": a, "b": b}
    holds = of(contents=[(numbers, [a, b]), (table, ["a", "b", a, b])])
    assert holds()
    for change, back in [(lambda: numbers.append(a), lambda: numbers.pop()),
                         (lambda: numbers.reverse(), lambda: numbers.reverse()),
                         (lambda: table.update(c=a), lambda: table.pop("c")),
                         (lambda: table.update(a=b), lambda: table.update(a=a))]:
        change()
        assert not holds()
        back()
        assert holds()
    table["a"] = table.pop("a")  # in another order
    assert not holds()
    assert not is_quick((OrderedDict(a=a), ["a", a])) and not is_quick((np.zeros(3), b"")) and not is_quick(([], 3))


@needs_code
def test_what_is_gone() -> None:
    gone: list[object] = []
    holds = of(gone=gone)
    assert holds()
    gone.append(1)
    assert not holds()


@needs_code
@pytest.mark.parametrize("rows", [
    {"slots": [3]}, {"slots": [(1, [], [])]}, {"slots": 3}, {"names": [({}, [], [], set(), ())]},
    {"single": [([], [])]}, {"contents": [([], ())]}, {"gone": ()}], ids=str)
def test_other_rows_are_refused(rows: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        of(**rows)


@needs_code
def test_nothing_is_kept_or_lost() -> None:
    """References are counted right; a circle through the rows is collected."""
    thing, items = Thing(), [object()]
    holds = of(contents=[(items, [*items])], names=[names_row(ref(thing), vars(thing), ["rate"], {"a"})],
                single=[([thing], ["rate"], [id(thing.rate)])])
    counted = (thing, thing.rate, items, items[0], Thing, MISSING)
    before = [sys.getrefcount(counted[i]) for i in range(6)]
    for _ in range(1000):
        assert holds()
    assert [sys.getrefcount(counted[i]) for i in range(6)] == before
    circle: list[Any] = [thing]
    circle.append(of(contents=[(circle, [thing])]))
    there = ref(thing)
    del thing, holds, counted, circle
    gc.collect()
    assert there() is None


# ---------------------------------------------------------------------------------------------- of real steps


class Scaled(ag.Layer):
    """Reads an attribute, an item of a list and one of a dict."""

    def __init__(self) -> None:
        self.inner = ag.ag_linear(4, 3)
        self.rate, self.rates, self.table = 0.5, [1.0, 2.0], {"k": 2.0}

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.inner(x) * (self.rate * self.rates[0] * self.table["k"] * FACTOR)


FACTOR = 1.0
OTHERS: list[Callable[[Scaled, dict[str, object]], object]] = [
    lambda model, space: setattr(model, "rate", 0.25), lambda model, space: model.rates.append(3.0),
    lambda model, space: model.rates.__setitem__(0, 3.0), lambda model, space: model.table.update(k=0.5),
    lambda model, space: model.table.update(other=1), lambda model, space: space.update(FACTOR=2.0),
    lambda model, space: setattr(model.inner.W, "requires_grad", False),
    lambda model, space: setattr(model.inner.W, "name", "another"),
    lambda model, space: setattr(model.inner.W, "grad", ag.ag_tensor(np.ones((3, 4)))),
    lambda model, space: setattr(Scaled, "forward", lambda self, x: self.inner(x) * 3.0),
    lambda model, space: setattr(model, "forward", lambda x: model.inner(x) * 4.0),
    lambda model, space: space.update(unrelated=1), lambda model, space: None]


@pytest.mark.parametrize("code", [pytest.param(True, marks=needs_code), False], ids=["compiled", "Python"])
@pytest.mark.parametrize("other", range(len(OTHERS)))
def test_what_changes_is_noticed(other: int, code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured is eager, and where the code is sure Python agrees; with the code and without."""
    monkeypatch.setattr(guards, "HAS_CODE", code)
    monkeypatch.setattr(Scaled, "forward", Scaled.forward)  # and put back at the end, as are the globals
    monkeypatch.setitem(globals(), "FACTOR", FACTOR)
    monkeypatch.setitem(globals(), "unrelated", 0)
    ag.ag_seed(0)
    model = Scaled()

    def loss_of(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_sum(model(x))
        if model.inner.b.requires_grad:
            ag.backward(loss)
        return loss

    step = ag.ag_capture(loss_of)

    def assert_as_eager(k: int) -> None:
        x = ag.ag_tensor(np.full((4, 2), k + 1.0))
        grads = [None if p.grad is None else p.grad.numpy() for p in model.parameters().values()]
        expected = loss_of(x).item(), [None if p.grad is None else p.grad.numpy() for p in model.parameters().values()]
        for p, grad in zip(model.parameters().values(), grads, strict=True):
            p.grad = None if grad is None else ag.ag_tensor(grad)
        assert step(x).item() == expected[0]
        for p, want in zip(model.parameters().values(), expected[1], strict=True):
            assert (p.grad is None) == (want is None) and (want is None or np.array_equal(p.grad.numpy(), want))
            p.grad = None

    for k in range(4):
        assert_as_eager(k)
    program = step._programs[-1].program
    assert program._holds() is code
    OTHERS[other](model, globals())
    assert not program._holds() or program._notes.change() is None
    if OTHERS[other] is OTHERS[-1] or other == len(OTHERS) - 2:
        assert program._holds() is code
    for k in range(4):
        assert_as_eager(k)
