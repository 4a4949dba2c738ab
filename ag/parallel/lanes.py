"""The threads of a job: one per device, so that devices work at the same time and one that hangs stops nobody else.

A call that does not come back in time is reported, and its thread left behind: Python cannot end a thread.  Knows
calls only, no model and no arithmetic; `ag.parallel.job` gives it the work of the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import NamedTuple

from ag.blocks import one_thread
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
    """

    def __init__(self, devices: Sequence[str], alone: set[str], timeout: float) -> None:
        self._lanes = {device: _Lane(device in alone) for device in devices}
        self._timeout = timeout

    def run(self, tasks: Sequence[Task], step: int) -> None:
        """Make all calls and wait for them; then raise the error of the first that failed.

        Raises
        ------
        CommError
            If one did not return in time, naming the replica.
        """
        context = copy_context()
        futures = [self._lanes[task.device].submit(context.copy(), task.call) for task in tasks]
        end = None if self._timeout == float("inf") else monotonic() + self._timeout
        for future in futures:
            _, late = wait([future], None if end is None else max(0.0, end - monotonic()))
            if late:
                break
        failed = [(f, t) for f, t in zip(futures, tasks, strict=True) if f.done() and f.exception() is not None]
        for future, task in sorted(failed, key=lambda pair: isinstance(pair[0].exception(), FollowingError)):
            raise noted(future.exception(), f"dp_train: raised by {task.who} in step {step}; weights are as before it.")
        hung = [task for future, task in zip(futures, tasks, strict=True) if not future.done()]
        for task in hung:
            self._lanes[task.device].hung = True
        if hung:
            late_one = next((task for task in hung if not task.waits()), hung[0])
            raise CommError(f"dp_train: {late_one.who} did not finish its part of step {step} within "
                            f"{self._timeout:g} s; weights are as before the step. Use no device that hangs until the "
                            f"call returns, or give a larger timeout if it is only slow.")

    def hangs(self, device: str) -> bool:
        """Whether a call for the device has not come back."""
        return self._lanes[device].hung

    def close(self) -> None:
        """End the threads, but those that hang, which end when their call returns."""
        for lane in self._lanes.values():
            lane.end()


class _Lane:
    def __init__(self, alone: bool) -> None:
        self.hung = False
        self._alone = alone
        self._given: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="ag_replica", daemon=True)
        self._thread.start()

    def submit(self, context: Context, call: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()

        def make() -> None:
            try:
                context.run(call)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                future.set_exception(error)
            else:
                future.set_result(None)

        self._given.put(make)
        return future

    def _work(self) -> None:
        if self._alone:
            one_thread()
        while (call := self._given.get()) is not None:
            call()

    def end(self) -> None:
        self._given.put(None)
        if not self.hung:
            self._thread.join()


def noted(error: BaseException | None, note: str) -> BaseException:
    """The error with a line more in its traceback: whose it is (Python 3.11 shows it)."""
    assert error is not None
    error.__dict__.setdefault("__notes__", []).append(note)
    return error
