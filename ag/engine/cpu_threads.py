"""Work on large arrays in blocks that fit a core's cache, shared out to all cores.

Intermediate results beyond the cache take numpy ten times as long, and numpy has threads for matrix products only.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from itertools import accumulate, count, pairwise
from math import ceil, inf, prod
from threading import Lock, Thread, get_ident, local
from time import sleep
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ag.engine.arena import after_fork
from ag.engine.primitive import Array, Call
from ag.errors import DeviceError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

T = TypeVar("T")

BLOCK = 1 << 15  # elements: a handful of arrays of 128 KiB stay in the second-level cache
WIDE = 1 << 17  # where several threads work: they take turns in Python, and a call must last longer than a turn
_GROUP = r"\d+:(|(?:[^:]*,)?cpu(?:,[^:]*)?):/(.*)"  # of Linux, which limits processor time


def cores() -> int:
    """Count the cores that the process may run on, within its limit of time; half a core counts as one."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, ceil(min(there, quota())))


def quota(root: str | os.PathLike[str] = "/sys/fs/cgroup",
          groups: str | os.PathLike[str] = "/proc/self/cgroup") -> float:
    """Read how many cores' time the limits of a container allow; infinite without one."""
    try:
        with open(groups, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
        of_version_1 = [name for name in os.listdir(root) if re.match("cpu", name)]  # by several names
    except (OSError, ValueError):
        return inf
    limits = [inf]
    for line in filter(None, map(re.compile(_GROUP).fullmatch, lines)):
        steps = [step for step in line[2].split("/") if step]
        steps = steps if ".." not in steps else []
        for mounted in of_version_1 if line[1] else [""]:
            limits += [_limit(os.path.join(root, mounted, *steps[:n])) for n in range(len(steps) + 1)]
    return min(limits)


def _limit(group: str) -> float:
    """Of a control group itself: its time in a period, by the period."""
    def said(name: str) -> str:
        with open(os.path.join(group, name), encoding="utf-8") as file:
            return file.read()

    try:
        if os.path.isfile(os.path.join(group, "cpu.max")):
            time, period = said("cpu.max").split()
        else:
            time, period = said("cpu.cfs_quota_us"), said("cpu.cfs_period_us")
        return int(time) / int(period) if int(time) > 0 else inf
    except (OSError, ValueError, ZeroDivisionError):  # not there, or "max"
        return inf


@lru_cache(maxsize=1)
def threads() -> int:
    """Count the threads that work at once: one per core, or as AG_THREADS or else OMP_NUM_THREADS says."""
    given, others = os.environ.get("AG_THREADS", ""), os.environ.get("OMP_NUM_THREADS", "")
    try:
        wanted = int(given or (others if others.isdecimal() and int(others) else cores()))
    except ValueError:
        wanted = 0
    if wanted < 1:
        raise DeviceError(f"AG_THREADS is {given!r}; it must be a whole number of threads, such as 4, or not set.")
    return min(cores(), wanted)


class _Work:
    """Calls that several threads make; who is free takes the next."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._next, self._finished = count(), count(1)  # counting is one step for Python's threads
        self._end = Lock()
        self._end.acquire()
        self._helping: dict[int, None] = {}
        self._stopped = False
        self.error: BaseException | None = None

    def help(self) -> None:
        me = get_ident()
        self._helping[me] = None
        try:
            self._make()
        finally:
            self._helping.pop(me, None)

    def _make(self) -> None:
        calls = self._calls
        while not self._stopped and (i := next(self._next)) < len(calls):
            try:
                calls[i]()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.error = error
            if next(self._finished) == len(calls):
                self._end.release()

    def stop(self) -> None:
        """Begin no more calls, and wait for those that are under way: they use arrays that the caller may drop."""
        self._stopped = True
        while self._helping:
            try:
                sleep(0.0005)
            except KeyboardInterrupt:  # one is on its way already
                self._stopped = True

    def wait(self) -> None:
        self._end.acquire()
        if self.error is not None:
            raise self.error


class WorkerThread(Thread):
    """A daemon thread that sleeps at a lock between calls; give one only after the one before has ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.retired = False  # set to end the thread when its call returns
        self._call: Call | None = None
        self._wake = Lock()
        self._wake.acquire()
        self.start()

    def give(self, call: Call) -> None:
        self._call = call
        self._wake.release()

    def run(self) -> None:
        while not self.retired:
            self._wake.acquire()
            call, self._call = self._call, None  # before it is made: the next may be given before it has returned
            if call is not None:
                call()
            del call  # and what it holds


class _Helpers:
    def __init__(self) -> None:
        self._idle: deque[WorkerThread] = deque()
        self._count = 0
        self._starting = Lock()

    def start(self, work: _Work, most: int) -> bool:
        """Let helpers that have nothing to do, `most` of them at most, help with work; whether there is one."""
        with self._starting:
            while self._count < threads() - 1:
                self._count += 1
                self._idle.append(WorkerThread("ag_blocks"))
        for started in range(most):
            try:
                helper = self._idle.popleft()
            except IndexError:
                return started > 0
            helper.give(partial(self._help, helper, work))
        return most > 0

    def forked(self) -> None:
        self._idle, self._count, self._starting = deque(), 0, Lock()

    def _help(self, helper: WorkerThread, work: _Work) -> None:
        with np.errstate(all="ignore"):  # as in every launch
            work.help()
        self._idle.append(helper)


_pool_at = 0  # of the process, as the library is
_helpers = _Helpers()
_here = local()
after_fork(_helpers.forked)


def share_cores(callers: int) -> None:
    """Let the calling thread compute as one of so many, from now on, each with its part of the cores; 1: with all."""
    _here.callers = callers


def callers() -> int:
    """Count the threads that share the cores with the calling one, itself included."""
    return getattr(_here, "callers", 1)


def available() -> int:
    """Count the threads that the calling one may have at work, itself included."""
    return max(1, threads() // callers())


def share_by(address: int) -> None:
    """From now on `pool_at` is this; the library of the CPU's kernels says it when it is loaded."""
    global _pool_at
    _pool_at = address


def pool_at() -> int:
    """The address of what shares compiled work out to compiled code's own threads; 0 if it was not loaded."""
    return _pool_at


def together(calls: Sequence[Call]) -> None:
    """Make calls that are independent of each other, several at once where cores are free."""
    if len(calls) < 2 or available() < 2:
        return one_by_one(calls)
    work = _Work(calls)
    if not _helpers.start(work, min(len(calls), available()) - 1):
        return one_by_one(calls)
    try:
        work.help()
        work.wait()
    except BaseException:
        work.stop()
        raise


def one_by_one(calls: Sequence[Call]) -> None:
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
    """Choose the function that makes the calls over pieces from `cut`."""
    return together if len(pieces) > 1 and pieces[0].stop > BLOCK else one_by_one


def overwrite(out: Array, array: Array) -> None:
    """``out[...] = array``, of one type, with a thread per core if both are large and dense; Ctrl-C waits."""
    if out.size < 2 * WIDE or not (out.flags.c_contiguous and array.flags.c_contiguous) or (
            out.shape != array.shape or np.may_share_memory(out, array)):  # a piece could be read after it is written
        out[...] = array
        return
    pieces, there, here = cut(out.size), out.reshape(-1), array.reshape(-1)
    try:
        makes(pieces)([partial(np.copyto, there[p], here[p]) for p in pieces])
    except BaseException:
        out[...] = array
        raise


class _Scratch(local):
    """Memory for intermediate results, one for each thread: fresh memory would cost more than what is put there."""

    def __init__(self) -> None:
        self._memory: dict[object, Array] = {}

    def __call__(self, dtype: DTypeLike, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
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
    def bind(*arrays: Array, **params: object) -> Call:
        if arrays[0].size <= WIDE:
            return partial(function, *arrays, **params)
        pieces, flat = cut(arrays[0].size), [x.reshape(-1) for x in arrays]
        return partial(makes(pieces), [partial(function, *[x[p] for x in flat], **params) for p in pieces])

    return bind
