"""A step that takes something from a random generator, an iterator or a queue is refused; one that looks is not."""

from __future__ import annotations

import itertools
import queue
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.autograd.captured.reads import UNKNOWN, source

W = ag.ag_param([[2.0]])
Read = Callable[[], float]


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


class Config:
    def __init__(self) -> None:
        self.rng, self.draw = np.random.default_rng(0), random.Random(0).random


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
