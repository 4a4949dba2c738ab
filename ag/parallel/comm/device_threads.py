"""Device threads: one thread per device, so that devices work at the same time and a hung one does not stop the others.

A call that does not return in time is reported, and its thread is abandoned: Python cannot end a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from functools import lru_cache
from threading import TIMEOUT_MAX, Lock, RLock
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from threadpoolctl import ThreadpoolController

from ag.autograd.create import ag_tensor
from ag.autograd.tape import no_grad
from ag.engine.arena import after_fork
from ag.engine.cpu_threads import WorkerThread, share_cores, threads
from ag.engine.interpreter import along
from ag.errors import CommError, DeviceError


class FollowingError(CommError):
    """Raised by a call only because another call failed."""


class Task(NamedTuple):
    """A call for a replica, which messages call `who`; ``waits()`` tells whether it is waiting for another call."""

    device: str
    who: str
    call: Callable[[], None]
    waits: Callable[[], bool] = lambda: False


class DeviceThreads:
    """A thread per device, or per core for those in `alone`; not shared where calls `wait` for each other."""

    def __init__(self, devices: Sequence[str], alone: set[str], timeout: float,
                 wait: bool = False) -> None:
        beside = [] if wait else [device for device in dict.fromkeys(devices) if device in alone]
        apart = [[device] for device in dict.fromkeys(devices) if device not in beside]
        each = -(-len(beside) // threads()) or 1  # threads that take turns on a core cost more than they bring
        groups = [*(beside[i : i + each] for i in range(0, len(beside), each)), *apart]
        sharing = sum([group[0] in alone for group in groups])
        self._threads = {device: thread for group in groups
                         for thread in [_idle_thread(sharing if group[0] in alone else 1)] for device in group}
        self._timeout = timeout
        self._cores = SharedCores(alone)

    def run(self, tasks: Sequence[Task], step: int) -> None:
        """Make all calls and wait for them; then raise the first error, or a CommError that names a late replica."""
        end = monotonic() + self._timeout
        of_thread: dict[_DeviceThread, list[Task]] = {}
        for task in tasks:
            of_thread.setdefault(self._threads[task.device], []).append(task)
        for thread in of_thread:
            thread.check()
        try:
            for thread, mine in of_thread.items():
                thread.give(mine)
            _wait_for(of_thread, end)
        except BaseException:  # Ctrl-C: wait for the calls, unless a second one comes
            _wait_for([thread for thread in of_thread if thread.now is not None], end)
            raise
        failed = [(task, error) for thread in of_thread for task, error in thread.failed]
        for task, error in sorted(failed, key=lambda pair: isinstance(pair[1], FollowingError)):
            raise named(error, task, step)
        late = [thread.now for thread in of_thread if thread.now is not None]
        if late:
            first = next((task for task in late if not task.waits()), late[0])
            raise CommError(f"dp_train: {first.who} did not finish its part of step {step} within {self._timeout:g} s; "
                            f"weights are as before the step. Use no device that hangs until the call returns, or give "
                            f"a larger timeout if it is only slow.")

    def hangs(self, device: str) -> bool:
        return self._threads[device].now is not None

    def close(self) -> None:
        """Return the threads; one that hangs ends when its call returns."""
        self._cores.close()
        for thread in set(self._threads.values()):
            thread.give_back()


def _wait_for(threads: Iterable[_DeviceThread], end: float) -> None:
    """Wait for all calls, until one is late."""
    for thread in threads:
        if not thread.wait(end - monotonic()):
            return


class _DeviceThread:
    """A worker thread for the calls of some devices, and the lock at which their caller waits."""

    def __init__(self) -> None:
        self.now: Task | None = None  # the call that is made now, or next
        self.failed: list[tuple[Task, BaseException]] = []
        self.callers = 1  # that share the cores with it
        self._tasks: list[Task] = []
        self._run: Callable[..., None] = copy_context().run
        self._done, self._ending = Lock(), Lock()
        self._done.acquire()
        self._thread = WorkerThread("ag_replica")

    def check(self) -> None:
        if not self._thread.is_alive():
            raise CommError("dp_train: the training was begun in another process, and this is a forked child, which "
                            "has none of its threads; begin a training of its own here.")

    def give(self, tasks: list[Task]) -> None:
        self._tasks, self._run, self.now, self.failed = tasks, along(copy_context().run), tasks[0], []
        self._thread.give(self._work)

    def wait(self, seconds: float) -> bool:
        """Wait for the calls, at most so long; return whether they have returned."""
        return self._done.acquire(timeout=min(max(0.0, seconds), TIMEOUT_MAX))

    def _work(self) -> None:
        share_cores(self.callers)
        self._make_calls()
        with self._ending:
            self.now = None
            self._done.release()

    def _make_calls(self) -> None:
        """Make the calls; a separate function so that no local holds a task, and its memory, afterwards."""
        for task in self._tasks:
            self.now = task
            try:
                self._run(task.call)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.failed.append((task, error))

    def give_back(self) -> None:
        """Join the idle threads; a thread that hangs ends when its call returns."""
        with self._ending:
            if self.now is not None:
                self._thread.retired, self._thread.name = True, "ag_replica (left behind)"
                return
            self._done.acquire(blocking=False)  # the caller may not have waited for the last calls
        self._tasks, self.failed, self._run = [], [], Context().run
        _idle.append(self)


_idle: deque[_DeviceThread] = deque()


def _idle_thread(callers: int) -> _DeviceThread:
    """Take an idle thread, or make one; drivers keep some memory for every thread that ever used them."""
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _DeviceThread()
    thread.callers = callers
    return thread


def named(error: BaseException, task: Task, step: int) -> BaseException:
    """Add the replica and the step to the error's traceback."""
    return noted(error, f"dp_train: raised by {task.who} in step {step}; weights are as before it.")


def noted(error: BaseException, note: str) -> BaseException:
    """Add a note to the error's traceback; Python 3.11 and later show it."""
    error.__dict__.setdefault("__notes__", []).append(note)
    return error


_lock = RLock()
_sharing: WeakKeyDictionary[SharedCores, frozenset[str]] = WeakKeyDictionary()
_before: dict[str, int] = {}  # threads of each library while they are limited, by file


@after_fork
def _forked() -> None:
    """Forget the threads in a forked child, which has none of them; replace the lock, whose owner may be missing."""
    global _lock
    _lock = RLock()
    _idle.clear()


class SharedCores:
    """Limits the BLAS until it is closed, while CPU devices work at the same time: each takes all cores otherwise."""

    def __init__(self, devices: Iterable[str]) -> None:
        with _lock:
            _sharing[self] = frozenset(devices)
            _apply()

    def close(self) -> None:
        with _lock:
            _sharing.pop(self, None)
            _apply()

    def __enter__(self) -> SharedCores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@lru_cache(maxsize=1)
def _libraries() -> list[Any]:
    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]


def _apply() -> None:
    """Give every BLAS as many threads as each device in use has cores; restore the number for one device."""
    devices = frozenset[str]().union(*_sharing.values())
    for library in _libraries():
        if len(devices) > 1:
            most = _before.setdefault(library.filepath, library.num_threads)
            library.set_num_threads(min(most, max(1, threads() // len(devices))))
        elif library.filepath in _before:
            library.set_num_threads(_before[library.filepath])
            del _before[library.filepath]


def blas_threads() -> list[tuple[str, int]]:
    """List the BLAS libraries of the process and their numbers of threads."""
    return [(f"{library.internal_api} {library.version}", library.num_threads) for library in _libraries()]


def failed_among(devices: Iterable[str]) -> list[str]:
    """Return the devices on which 1 + 1 is not 2 any more."""
    return [device for device in dict.fromkeys(devices) if not _works(device)]


def _works(device: str) -> bool:
    try:
        with no_grad():
            one = ag_tensor(np.ones(1, np.float32), device)
            return bool((one + one).item() == 2.0)
    except DeviceError:
        return False
