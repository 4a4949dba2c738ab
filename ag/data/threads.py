"""Threads of data loaders: things made ahead in the background, and a lock that survives forks and copies.

`made_ahead` makes things in an order that is known from the start, for loops.  `Prefetcher` hears in every step of
`dp_train` which come next.  A loop that ends early does not wait for its thread, and threads keep no process alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import RLock, Semaphore, Thread
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_LOOK = 0.5  # seconds; Ctrl-C that comes just before a wait does not end it, so no wait is longer
Check = Callable[[], None]  # called between the parts of long work; raises if the result is no longer wanted


def made_ahead(make: Callable[[int, Check], T], numbers: range, most: int) -> Generator[T, None, None]:
    """Yield ``make(n, check)`` for each number in order; a thread makes at most `most` ahead."""
    maker: _Maker[T] | None = None
    try:
        for n in numbers:
            if maker is None or maker.is_gone():  # a forked child has the thread's queue, but not the thread
                maker = _Maker(make, range(n, numbers.stop), most)
            yield maker.take(last=n == numbers[-1])
    finally:
        if maker is not None:
            maker.leave()


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


class _Maker(Generic[T]):
    """A thread that makes things, up to the first error, and the queue of those that are done."""

    def __init__(self, make: Callable[[int, Check], T], numbers: range, most: int) -> None:
        self._make, self._numbers = make, numbers
        self._done: SimpleQueue[Future[T]] = SimpleQueue()
        self._room = Semaphore(most)
        self._left = False
        # a daemon: others are waited for when the process ends, and this one may hang in a sample
        self._thread = Thread(target=copy_context().run, args=(self._run,), daemon=True, name="ag_dataloader")
        self._thread.start()

    def _run(self) -> None:
        for n in self._numbers:
            self._room.acquire()
            thing: Future[T] = Future()
            try:
                self._check()
                thing.set_result(self._make(n, self._check))
            except _UnwantedError:
                return
            except BaseException as error:  # noqa: BLE001
                thing.set_exception(error)
                self._done.put(thing)
                return
            self._done.put(thing)

    def _check(self) -> None:
        if self._left:
            raise _UnwantedError

    def is_gone(self) -> bool:
        return not self._thread.is_alive() and self._done.empty()

    def take(self, last: bool) -> T:
        thing = self._next()
        self._room.release()
        if last or thing.exception() is not None:
            self._thread.join()  # which has nothing more to do
        return thing.result()

    def _next(self) -> Future[T]:
        while True:
            try:
                return self._done.get(timeout=_LOOK)
            except Empty:
                continue

    def leave(self) -> None:
        self._left = True
        self._room.release()


class Prefetcher(Generic[K, T]):
    """Things that threads make before they are asked for, each by its key.

    With several threads, `make(key)` is called for several keys at a time; one thread keeps the order.
    """

    def __init__(self, make: Callable[[K], T], threads: int) -> None:
        self._make, self._threads = make, threads
        self._coming: dict[K, Future[T]] = {}
        self._due: SimpleQueue[tuple[K, Future[T]] | None] = SimpleQueue()
        self._started = False

    def take(self, wanted: Sequence[K], coming: Sequence[K] = ()) -> list[T]:
        """Return these things in order, or raise the error of one; waits for those that are not made yet.

        Those in `coming` are made meanwhile; others are forgotten.
        """
        if not self._started:
            self._started = True
            for _ in range(self._threads):
                Thread(target=copy_context().run, args=(self._run,), daemon=True, name="ag_samples").start()
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

    def close(self) -> None:
        """Forget the keys and end the threads; does not wait for them."""
        for thing in self._coming.values():
            thing.cancel()
        self._coming.clear()
        for _ in range(self._threads):
            self._due.put(None)


_forks = 0  # between the first process and this one


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


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
