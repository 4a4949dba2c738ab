"""The threads of a job: one per device, so that devices work at the same time and one that hangs stops nobody else.

A call that does not come back in time is reported, and its thread left behind: Python cannot end a thread.  Others wait
for the next job, as drivers keep some memory for every thread that ever used them.  Knows calls only, no model and no
arithmetic; `ag.parallel.trainer.trainer` gives it the work of the replicas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from threading import TIMEOUT_MAX, Lock, Thread
from time import monotonic
from typing import NamedTuple

from ag.engine.cpu_threads import one_thread
from ag.errors import CommError

__all__ = ["FollowingError", "Lanes", "Task", "noted"]


class FollowingError(CommError):
    """What a call raises only because another one failed."""


class Task(NamedTuple):
    """A call for a replica; `who` says which, for messages, and `waits` whether it waits for another call."""

    device: str
    who: str
    call: Callable[[], None]
    waits: Callable[[], bool] = lambda: False


class Lanes:
    """A thread per device, which makes the calls for it one after the other.

    Parameters
    ----------
    devices : sequence of str
        May name a device more than once.
    alone : set of str
        Devices whose threads compute themselves, without help of the other cores: there are others like them.
    timeout : float
        Seconds that the calls of a device may take together.
    direct : bool, optional
        Make the calls in the calling thread, without a time limit: where there is nobody else to wait for.
    """

    def __init__(self, devices: Sequence[str], alone: set[str], timeout: float, direct: bool = False) -> None:
        self._lanes = {} if direct else {device: _lane(device in alone) for device in devices}
        self._timeout = timeout
        self._direct = direct

    def run(self, tasks: Sequence[Task], step: int) -> None:
        """Make all calls and wait for them; then raise the error of the first that failed.

        Raises
        ------
        CommError
            If one did not return in time, naming the replica.
        """
        if self._direct:
            for task in tasks:
                try:
                    task.call()
                except BaseException as raised:
                    _of(task, raised, step)
                    raise
            return
        end = monotonic() + self._timeout
        given: dict[str, list[Task]] = {}
        for task in tasks:
            given.setdefault(task.device, []).append(task)
        for device, mine in given.items():
            self._lanes[device].give(mine)
        for device in given:
            if not self._lanes[device].wait(end - monotonic()):
                break
        lanes = [self._lanes[device] for device in given]
        failed = [(task, error) for lane in lanes for task, error in lane.failed]
        for task, error in sorted(failed, key=lambda pair: isinstance(pair[1], FollowingError)):
            raise _of(task, error, step)
        late = [lane.now for lane in lanes if lane.now is not None]
        if late:
            first = next((task for task in late if not task.waits()), late[0])
            raise CommError(f"dp_train: {first.who} did not finish its part of step {step} within {self._timeout:g} s; "
                            f"weights are as before the step. Use no device that hangs until the call returns, or give "
                            f"a larger timeout if it is only slow.")

    def hangs(self, device: str) -> bool:
        """Whether a call for the device has not come back."""
        return not self._direct and self._lanes[device].now is not None

    def close(self) -> None:
        """Let go of the threads; those that hang end when their call returns."""
        for lane in self._lanes.values():
            lane.end()


class _Lane(Thread):
    """A thread that waits for calls, and who waits for it, at two locks, which cost less than a queue."""

    def __init__(self) -> None:
        super().__init__(name="ag_replica", daemon=True)
        self.now: Task | None = None  # what is to be done next, or being done
        self.failed: list[tuple[Task, BaseException]] = []
        self.alone = False
        self._tasks: list[Task] = []
        self._context = copy_context()
        self._given, self._done, self._ending = Lock(), Lock(), Lock()
        self._given.acquire()
        self._done.acquire()
        self._left_behind = False
        self.start()

    def give(self, tasks: list[Task]) -> None:
        self._tasks, self._context, self.failed, self.now = tasks, copy_context(), [], tasks[0]
        self._given.release()

    def wait(self, seconds: float) -> bool:
        """Whether the calls have returned; waits for so long."""
        return self._done.acquire(timeout=min(max(0.0, seconds), TIMEOUT_MAX))

    def run(self) -> None:
        while not self._left_behind:
            self._given.acquire()
            one_thread(self.alone)
            for task in self._tasks:
                self.now = task
                try:
                    self._context.run(task.call)
                except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                    self.failed.append((task, error))
            with self._ending:
                self.now = None
                self._done.release()

    def end(self) -> None:
        """The job needs the thread no more: another may, unless it hangs."""
        with self._ending:
            if self.now is not None:
                self._left_behind, self.name = True, "ag_replica (left behind)"
                return
            self._done.acquire(blocking=False)  # if nobody has waited for its last calls
        self._tasks, self.failed, self._context = [], [], Context()
        _idle.append(self)


_idle: deque[_Lane] = deque()


def _lane(alone: bool) -> _Lane:
    """A thread that has nothing to do."""
    try:
        lane = _idle.pop()
    except IndexError:
        lane = _Lane()
    lane.alone = alone
    return lane


def _of(task: Task, error: BaseException, step: int) -> BaseException:
    return noted(error, f"dp_train: raised by {task.who} in step {step}; weights are as before it.")


def noted(error: BaseException, note: str) -> BaseException:
    """The error with a line more in its traceback: whose it is (Python 3.11 shows it)."""
    error.__dict__.setdefault("__notes__", []).append(note)
    return error
