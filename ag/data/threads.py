"""Threads of data loaders: things made ahead in the background, and a lock that survives forks and copies.

A loop that ends early does not wait for its thread, and threads keep no process alive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Generic, TypeVar

from ag.engine.arena import after_fork

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_LOOK = 0.5  # seconds; Ctrl-C that comes just before a wait does not end it, so no wait is longer
Check = Callable[[], None]  # called between the parts of long work; raises if the result is no longer wanted


def made_ahead(make: Callable[[int, Check], T], numbers: range, most: int) -> Generator[T, None, None]:
    """Yield ``make(n, check)`` for each number in order, up to the first error; a thread makes at most `most` ahead."""
    over = False

    def check() -> None:
        if over:
            raise _UnwantedError

    def made(n: int) -> T:
        nonlocal over
        try:
            check()
            return make(n, check)
        except BaseException:
            over = True
            raise

    ahead = Prefetcher(made, threads=1)
    try:
        for n in numbers:
            yield ahead.take([n], range(n + 1, min(n + 1 + most, numbers.stop)))[0]
        over = True
    finally:
        idle, over = over, True
        ahead.close(idle)


class OneByOne(Iterator[T]):
    """A generator that several threads share: each gets what no other does."""

    def __init__(self, generator: Generator[T, None, None]) -> None:
        self._generator, self._turn = generator, Lock()

    def __next__(self) -> T:
        with self._turn():
            return next(self._generator)

    def close(self) -> None:
        """End the generator."""
        self._generator.close()


class _UnwantedError(Exception):
    """The loop that wanted the thing has ended."""


class Prefetcher(Generic[K, T]):
    """Things that threads make by key before they are asked for; one thread keeps the order, several may not."""

    def __init__(self, make: Callable[[K], T], threads: int) -> None:
        self._make, self._threads = make, threads
        self._coming: dict[K, Future[T]] = {}
        self._due: SimpleQueue[tuple[K, Future[T]] | None] = SimpleQueue()
        self._workers: list[Thread] = []
        self._owner = _forks  # a forked child has no threads

    def take(self, wanted: Sequence[K], coming: Sequence[K] = ()) -> list[T]:
        """Return these things, or raise the error of one; those in `coming` are made meanwhile, others forgotten."""
        if self._owner != _forks or not self._workers:
            self._owner, self._coming, self._due = _forks, {}, SimpleQueue()
            # daemons: other threads are waited for when the process ends, and these may hang in a sample
            self._workers = [Thread(target=copy_context().run, args=(self._run,), daemon=True, name="ag_samples")
                             for _ in range(self._threads)]
            for worker in self._workers:
                worker.start()
        needed = {*wanted, *coming}
        for key in [key for key in self._coming if key not in needed]:
            self._coming.pop(key).cancel()
        for key in (*wanted, *coming):
            if key not in self._coming:
                self._coming[key] = Future()
                self._due.put((key, self._coming[key]))
        found = {key: self._coming.pop(key) for key in dict.fromkeys(wanted)}
        for thing in found.values():
            while not thing.done():
                wait([thing], _LOOK)
        return [found[key].result() for key in wanted]

    def _run(self) -> None:
        while (due := self._due.get()) is not None:
            key, thing = due
            if thing.set_running_or_notify_cancel():
                try:
                    thing.set_result(self._make(key))
                except BaseException as error:  # noqa: BLE001 - it is raised where the thing is asked for
                    thing.set_exception(error)

    def close(self, idle: bool = False) -> None:
        """Forget the keys and end the threads; waits for them if they are known to have nothing to do."""
        for thing in self._coming.values():
            thing.cancel()
        self._coming.clear()
        for _ in self._workers:
            self._due.put(None)
        for worker in self._workers if idle else ():
            worker.join()


_forks = 0  # between the first process and this one


@after_fork
def _forked() -> None:
    global _forks
    _forks += 1


class Lock:
    """A lock of one object in one process: copies, and forked children, find theirs open."""

    def __init__(self) -> None:
        self._owner = _forks, RLock()

    def __call__(self) -> AbstractContextManager[bool]:
        """To be held in a ``with``."""
        if self._owner[0] != _forks:
            self._owner = _forks, RLock()
        return self._owner[1]

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()
