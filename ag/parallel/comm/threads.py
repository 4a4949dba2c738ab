"""Groups of threads of one process, as `ag.parallel.comm.comm.Comm` describes them.

Every call is a meeting of all ranks: the last one to come does the work for all, the others wait.  Of three ranks in
``all_reduce``, ranks 2 and 0 bring their arrays and wait; rank 1 comes, adds up the three in the order of the ranks,
and copies the sum into all of them.

Knows arrays and locks; no tensor, no device.  `parallel_apply`, the trainer's synchronized samples, and users who train
with several ranks in one process make such groups.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from threading import Condition
from time import monotonic
from typing import Any

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError
from ag.parallel.comm.comm import Comm, alike, check_rank, contiguous
from ag.parallel.comm.tree_reduction import add_rows, tree_sum

__all__ = ["Combine", "ThreadComm", "thread_comms"]

Combine = Callable[[list[Any]], list[Any]]

TIMEOUT = 60.0  # seconds


class _Meeting:
    """One call of all ranks: the value that each has brought, and the result."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.brought: dict[int, object] = {}
        self.result: Any = None
        self.done = False
        self.left = 0


class _Group:
    """What the threads of a group share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.changed = Condition()
        self.meetings: dict[int, _Meeting] = {}
        self.posted: dict[tuple[int, int], deque[Array]] = defaultdict(deque)  # by sender and receiver
        self.error: str | None = None

    def end(self, reason: str) -> None:
        """Wake all ranks; the first reason stays."""
        with self.changed:
            self.error = self.error or reason
            self.changed.notify_all()

    def check(self) -> None:
        """Raise if the group was ended."""
        if self.error is not None:
            raise CommError(self.error)

    def wait(self, ready: Callable[[], bool], late: Callable[[], str]) -> None:
        """Wait for `ready`, holding the lock; when time is up, `late` names the ranks that are missing."""
        end = monotonic() + self.timeout
        while not ready() and self.error is None:
            if not self.changed.wait(max(0.0, end - monotonic())) and not ready():
                self.end(late())
        if not ready():  # a meeting that is complete counts, even if the group ends right after it
            self.check()


class ThreadComm(Comm):
    """A place in a group of threads; made by `thread_comms`."""

    def __init__(self, group: _Group, rank: int) -> None:
        self.rank, self.size = rank, group.size
        self._group = group
        self._calls = 0

    def _meet(self, operation: str, brought: object, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait for all ranks; `combine` is called once, with their values in the order of the ranks."""
        group = self._group
        with group.changed:
            number, self._calls = self._calls, self._calls + 1
            meeting = group.meetings.setdefault(number, _Meeting(operation))
            if group.error is None and meeting.operation != operation:
                group.end(f"{operation}: rank {self.rank} calls it where rank {next(iter(meeting.brought))} calls "
                          f"{meeting.operation}; all ranks must make the same calls in the same order.")
            meeting.brought[self.rank] = brought
            if group.error is None and len(meeting.brought) == self.size:
                try:
                    meeting.result = combine([meeting.brought[i] for i in range(self.size)])
                    meeting.done = True
                    group.changed.notify_all()
                except CommError as error:
                    group.end(str(error))

            def late() -> str:
                missing = ", ".join(str(i) for i in range(self.size) if i not in meeting.brought)
                return f"{operation}: rank {missing} did not come within {group.timeout:g} s."

            group.wait(lambda: meeting.done, late)
            meeting.left += 1
            if meeting.left == self.size:
                del group.meetings[number]
            return meeting.result

    def all_reduce(self, array: Array) -> None:
        self._meet("all_reduce", contiguous("all_reduce", array), _sum_into_all)

    def reduce_scatter(self, array: Array) -> Array:
        flat = contiguous("reduce_scatter", array).reshape(-1)
        total = self._meet("reduce_scatter", flat, partial(_summed, "reduce_scatter"))
        part: Array = total[self.shares_of(flat.size)[self.rank]].copy()
        return part

    def all_gather(self, part: Array) -> Array:
        def joined(parts: list[Array]) -> Array:
            alike("all_gather", [x.dtype for x in parts], "types")
            return np.concatenate(parts)

        whole: Array = self._meet("all_gather", contiguous("all_gather", part).reshape(-1), joined).copy()
        return whole

    def broadcast(self, array: Array, root: int = 0) -> None:
        check_rank("broadcast", root, self.size)

        def spread(brought: list[tuple[Array, int]]) -> None:
            alike("broadcast", [where for _, where in brought], "roots")
            arrays = [x for x, _ in brought]
            alike("broadcast", [(x.shape, x.dtype) for x in arrays], "shapes or types")
            for i, x in enumerate(arrays):
                if i != root:
                    np.copyto(x, arrays[root])

        self._meet("broadcast", (contiguous("broadcast", array), root), spread)

    def send(self, array: Array, to: int) -> None:
        check_rank("send", to, self.size)
        group = self._group
        with group.changed:
            group.check()
            group.posted[self.rank, to].append(array.copy())
            group.changed.notify_all()

    def recv(self, source: int) -> Array:
        check_rank("recv", source, self.size)
        group = self._group
        with group.changed:
            group.check()
            posted = group.posted[source, self.rank]
            group.wait(lambda: bool(posted), lambda: f"recv: rank {source} sent nothing to rank {self.rank} within "
                                                     f"{group.timeout:g} s.")
            return posted.popleft()

    def barrier(self) -> None:
        self._meet("barrier", None, lambda _: None)

    def split(self, color: int) -> Comm:
        def groups(colors: list[int]) -> list[ThreadComm]:
            by_color = {c: _Group(colors.count(c), self._group.timeout) for c in colors}
            return [ThreadComm(by_color[c], colors[:i].count(c)) for i, c in enumerate(colors)]

        mine: ThreadComm = self._meet("split", color, groups)[self.rank]
        return mine

    def exchange(self, value: object, combine: Combine = list) -> list[Any]:
        """The result of `combine`, called once with the values of all ranks, of any type; nothing is copied."""
        result: list[Any] = self._meet("exchange", value, combine)
        return result

    def is_ended(self) -> bool:
        """Whether the group was ended."""
        return self._group.error is not None

    def abort(self, reason: str) -> None:
        self._group.end(f"the group was ended by rank {self.rank}: {reason}")


def thread_comms(size: int, timeout: float = TIMEOUT) -> list[ThreadComm]:
    """The places of a group of `size` threads of this process, one for each.

    Parameters
    ----------
    size : int
        At least 1.
    timeout : float, optional
        Seconds after which a rank that waits for others gives up.

    Raises
    ------
    ValueError
        If `size` is less than 1 or `timeout` is not positive.
    """
    if size < 1 or not timeout > 0:
        raise ValueError(f"thread_comms: size is {size} and timeout is {timeout}; at least one rank and a positive "
                         f"time are required.")
    group = _Group(size, timeout)
    return [ThreadComm(group, rank) for rank in range(size)]


def _added(left: Array, right: Array) -> Array:
    """The sum of two contiguous arrays of one shape."""
    return add_rows(left.reshape(-1), right.reshape(-1), np.empty(left.size, left.dtype)).reshape(left.shape)


def _summed(operation: str, arrays: list[Array]) -> Array:
    """The sum over the ranks, in the order of one binary tree."""
    alike(operation, [(x.shape, str(x.dtype)) for x in arrays], "shapes and types")
    with np.errstate(all="ignore"):  # the caller deals with infinities and NaN
        return tree_sum(arrays, _added)


def _sum_into_all(arrays: list[Array]) -> None:
    total = _summed("all_reduce", arrays)
    for x in arrays:
        np.copyto(x, total)
