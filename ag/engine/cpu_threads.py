"""Work on large arrays in blocks: small enough that they stay in a core's cache, and shared out to all cores.

A numpy expression makes an array of every intermediate result; where these are larger than the cache, writing and
reading them takes ten times as long as computing them.  And numpy has threads for products of matrices only.  The
references of primitives, which are the CPU backend, go block after block through `together`.  Knows calls and arrays.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from itertools import accumulate, count, pairwise
from math import prod
from threading import Lock, Thread, local
from typing import Any, TypeVar

import numpy as np

from ag.engine.primitive import Call

__all__ = ["BLOCK", "WIDE", "cut", "in_blocks", "makes", "one_by_one", "one_thread", "scratch", "shares",
           "together"]

T = TypeVar("T")

BLOCK = 1 << 15  # elements: a handful of arrays of 128 KiB stay in the second-level cache
WIDE = 1 << 17  # where several threads work: they take turns in Python, and a call must last longer than a turn


@lru_cache(maxsize=1)
def threads() -> int:
    """How many threads work at once: one per core, or what OMP_NUM_THREADS says, as for numpy's products."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, int(given)) if given.isdigit() and int(given) > 0 else cores


class _Work:
    """Calls that several threads make; who is free takes the next."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._next, self._finished = count(), count(1)  # counting is one step for Python's threads
        self._end = Lock()
        self._end.acquire()
        self.error: BaseException | None = None

    def help(self) -> None:
        """Make calls until there are no more."""
        calls = self._calls
        while (i := next(self._next)) < len(calls):
            try:
                calls[i]()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.error = error
            if next(self._finished) == len(calls):
                self._end.release()

    def wait(self) -> None:
        """Wait until all calls were made."""
        self._end.acquire()
        if self.error is not None:
            raise self.error


class _Helper(Thread):
    """A thread that waits for work."""

    def __init__(self, free: deque[_Helper]) -> None:
        super().__init__(name="ag_blocks", daemon=True)
        self._free, self._given = free, Lock()
        self._given.acquire()
        self._work: _Work | None = None
        self.start()

    def give(self, work: _Work) -> None:
        self._work = work
        self._given.release()

    def run(self) -> None:
        with np.errstate(all="ignore"):  # as in every launch
            while True:
                self._given.acquire()
                if self._work is not None:
                    self._work.help()
                self._work = None
                self._free.append(self)


_free: deque[_Helper] = deque()
_here = local()
_made = Lock()
_count = 0


def _helpers(most: int) -> list[_Helper]:
    """Threads that have nothing to do, `most` of them at most."""
    global _count
    with _made:
        while _count < threads() - 1:
            _count += 1
            _free.append(_Helper(_free))
    found: list[_Helper] = []
    while len(found) < most:
        try:
            found.append(_free.popleft())
        except IndexError:
            break
    return found


def one_thread(alone: bool = True) -> None:
    """Let the calling thread work alone from now on: there are others like it, one per core."""
    _here.alone = alone


def together(calls: Sequence[Call]) -> None:
    """Make calls that are independent of each other, several at once where cores are free."""
    helpers = [] if getattr(_here, "alone", False) or len(calls) < 2 else _helpers(len(calls) - 1)
    if not helpers:
        return one_by_one(calls)
    work = _Work(calls)
    for helper in helpers:
        helper.give(work)
    work.help()
    work.wait()


def one_by_one(calls: Sequence[Call]) -> None:
    """Make calls in this thread."""
    for call in calls:
        call()


def shares(items: Sequence[T]) -> list[Sequence[T]]:
    """Items as runs of neighbours, one per thread."""
    parts = max(1, min(len(items), threads()))
    ends = [len(items) * i // parts for i in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(ends)]


def cut(size: int) -> list[slice]:
    """A large array in equal pieces for all threads; what is left of another in pieces of `BLOCK` elements."""
    step = BLOCK
    if threads() > 1 and size >= 2 * WIDE:
        rounds = -(-size // (WIDE * threads()))
        step = -(-size // (rounds * threads()))
    return [slice(i, i + step) for i in range(0, size, step)]


def makes(pieces: Sequence[slice]) -> Callable[[Sequence[Call]], None]:
    """How to make the calls over pieces from `cut`."""
    return together if len(pieces) > 1 and pieces[0].stop > BLOCK else one_by_one


class _Scratch(local):
    """Memory for intermediate results, one for each thread: fresh memory would cost more than what is put there."""

    def __init__(self) -> None:
        self._memory: dict[object, Any] = {}

    def __call__(self, dtype: object, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Uninitialised arrays, until the thread's next call."""
        ends = list(accumulate(map(prod, shapes)))
        memory = self._memory.get(dtype)
        if memory is None or memory.size < ends[-1]:
            memory = self._memory[dtype] = np.empty(ends[-1], dtype)
        return [memory[end - prod(shape) : end].reshape(shape) for shape, end in zip(shapes, ends, strict=True)]


scratch = _Scratch()


def in_blocks(function: Callable[..., None]) -> Callable[..., Call]:
    """For ``@primitive(bound=True)``: bind `function`, whose operands have one shape, to each piece of its operands."""

    @wraps(function)
    def bind(*arrays: Any, **params: object) -> Call:
        if arrays[0].size <= WIDE:
            return partial(function, *arrays, **params)
        pieces, flat = cut(arrays[0].size), [x.reshape(-1) for x in arrays]
        return partial(makes(pieces), [partial(function, *[x[p] for x in flat], **params) for p in pieces])

    return bind
