"""Sources: what a step takes values from that no replay would take: random generators, iterators, queues.

A replay runs no Python, so ``random.random()``, ``rng.normal()`` and ``next(batches)`` would give again what they gave
while the step was recorded.  Whether the step took something shows in the state of the source:

    rng      state 17 before the step, 18 after it       taken from: the step is refused
    batches  a generator, whose state nobody can see     refused where the step can reach it

A file is none: reading one is like looking at the clock (docs/capture.md).  Knows no step and no name;
`ag.autograd.captured.names` finds sources and keeps their states, `ag.autograd.captured.notes` refuses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from io import IOBase
from itertools import count, repeat
from operator import length_hint
from pickle import dumps
from queue import Queue, SimpleQueue
from types import BuiltinMethodType, MethodWrapperType, ModuleType

import numpy as np

__all__ = ["UNKNOWN", "Source", "source"]

Source = Callable[[], object]  # gives the state, which can be compared

UNKNOWN = object()  # the state of a source that does not show it
# Iterators that tell how many items are left.
_COUNTED = (*map(type, (iter([]), iter(()), iter(""), iter(b""), iter(range(0)), iter(range(1 << 80)), iter(set()),
                        iter({}), iter({}.values()), iter({}.items()), reversed([]), reversed({}))), repeat)


def source(x: object) -> Source | None:
    """What gives the state of a source, of the one that a method is of, or of the one behind a module; else None."""
    if isinstance(x, (BuiltinMethodType, MethodWrapperType)):
        x = x.__self__
    if isinstance(x, ModuleType):
        x = _behind(x)
    kind = type(x)
    if kind.__module__ == "builtins" and not hasattr(kind, "__next__"):
        return None  # most values
    if isinstance(x, np.random.RandomState):
        return partial(_numpys, partial(x.get_state, legacy=False))
    if isinstance(x, (np.random.Generator, np.random.BitGenerator)):
        return partial(_numpys, partial(getattr, getattr(x, "bit_generator", x), "state"))
    if isinstance(x, Queue):
        return lambda: [*map(id, x.queue)]
    if isinstance(x, SimpleQueue):
        return x.qsize
    if isinstance(x, random.Random):
        return partial(_pythons, x)
    if not hasattr(kind, "__next__") or isinstance(x, IOBase):
        return None
    if isinstance(x, count):
        return partial(repr, x)
    return partial(length_hint, x, -1) if isinstance(x, _COUNTED) else _unknown


def _behind(module: ModuleType) -> object:
    """The generator that the functions of a module draw from."""
    if module.__name__ == "random":
        return module.random.__self__
    return np.random.mtrand._rand if module.__name__ == "numpy.random" else None


def _numpys(state: Source) -> object:
    return dumps(state())  # a dict with arrays in it


def _pythons(x: random.Random) -> object:
    try:
        return x.getstate()
    except NotImplementedError:  # what the system draws
        return UNKNOWN


def _unknown() -> object:
    return UNKNOWN
