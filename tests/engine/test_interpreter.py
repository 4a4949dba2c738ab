"""The pointers of a thread, in C and in Python, and what an interpreter passes on."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import pytest

from ag.engine import interpreter
from ag.engine.interpreter import Interpreter
from ag.native import code


class Records(Interpreter):
    records = True


@pytest.fixture(params=["compiled", "in Python"])
def ways(request: pytest.FixtureRequest) -> Any:
    """`current`, `recording_here`, `enter` and `leave`."""
    if request.param == "in Python":
        return interpreter.in_python()
    if code is None:
        pytest.skip("no compiler was here")
    return code.current, code.recording_here, code.enter, code.leave


def test_the_innermost_and_the_one_that_records(ways: Any) -> None:
    current, recording_here, enter, leave = ways
    outer, records, inner = Interpreter(), Records(), Interpreter()
    assert current() is None and recording_here() is None
    enter(outer)
    assert current() is outer and outer.outer is None and recording_here() is None
    enter(records)
    enter(inner)
    assert current() is inner and inner.outer is records and records.outer is outer and recording_here() is records
    leave(inner)
    assert current() is records and inner.outer is None and recording_here() is records
    leave(records)
    assert current() is outer and recording_here() is None
    leave(outer)
    assert current() is None


def test_one_that_is_left_takes_along_all_inside_it(ways: Any) -> None:
    current, recording_here, enter, leave = ways
    outer, records, inner = Records(), Interpreter(), Records()
    for each in (outer, records, inner):
        enter(each)
    leave(records)
    assert current() is outer and recording_here() is outer
    leave(inner)  # it is not there any more
    assert current() is outer and recording_here() is outer
    leave(outer)
    leave(outer)
    assert current() is None and recording_here() is None


def test_threads_have_their_own(ways: Any) -> None:
    current, recording_here, enter, leave = ways
    enter(Records())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (current(), recording_here())).result() == (None, None)
    leave(current())


def test_what_was_left_can_die(ways: Any) -> None:
    current, _, enter, leave = ways
    made = [Records(), Interpreter()]
    enter(made[0])
    enter(made[1])
    gone = [ref(x) for x in made]
    leave(made[0])
    made.clear()
    gc.collect()
    assert [x() for x in gone] == [None, None] and current() is None


def test_an_error_leaves_all_as_it_was(ways: Any) -> None:
    current, recording_here, enter, leave = ways

    class Broken:
        __slots__ = ()  # no `outer`, no `records`

    with pytest.raises(AttributeError):
        enter(Broken())
    assert current() is None and recording_here() is None
    leave(Broken())


def test_everything_is_passed_on() -> None:
    heard: list[tuple[str, tuple[Any, ...]]] = []

    class Hears(Interpreter):
        def __getattribute__(self, name: str) -> Any:
            if name in ("uploaded", "before_op", "after_op", "uses", "same", "read", "grad_read", "grad_written"):
                return lambda *args: heard.append((name, args))
            return super().__getattribute__(name)

        exports, repeats = True, 7

    outer, inner = Hears(), Interpreter()
    with outer, inner:
        assert inner.exports is True and inner.repeats == 7
        calls = {"uploaded": (1, 2, 3), "before_op": (1, 2, 3, 4, 5), "after_op": (1, 2, 3, 4, 5), "uses": ((1,), True),
                 "same": (1, 2), "read": (1,), "grad_read": (1, 2), "grad_written": (1,)}
        for name, args in calls.items():
            getattr(inner, name)(*args)
    assert heard == [*calls.items()]
    assert inner.exports is False and inner.repeats == 0 and inner.uploaded(1, 2, 3) is None
    assert inner.before_op("ag_add", (), (), (), len) is len
