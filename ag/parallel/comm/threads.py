"""Groups of threads of one process.

A call is a meeting of all ranks, of which the last to come does the work.  One whose thread has ended is lost.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import gethostname
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Any

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm, Moves, check_rank, sent_array

Combine = Callable[[list[Any]], list[Any]]

TIMEOUT = 60.0  # seconds
_LOOK = 0.5  # seconds between checks of a waiting rank whether the other threads are alive


@dataclass
class _Meeting:
    """One call of all ranks, or one agreement of the remaining ones."""

    operation: str
    brought: dict[int, Any] = field(default_factory=dict)  # by rank
    result: Any = None
    done: bool = False
    left: int = 0


class _Group:
    """The shared state of a group, read and written under the lock `changed`."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.changed = Condition()
        self.meetings: dict[int, _Meeting] = {}
        self.agreements: dict[int, _Meeting] = {}  # commit and survivors, without lost ranks
        self.posted: dict[tuple[int, int], deque[Array]] = defaultdict(deque)  # by sender and receiver
        self.threads: dict[int, tuple[Thread, int]] = {}  # the thread of a rank, and how many it had
        self.error: str | None = None
        self.lost: dict[int, str] = {}  # what happened, by rank
        self.revoked = False  # only agreements are allowed

    def part(self, ranks: list[int]) -> _Group:
        """Make the group of some ranks, with which their threads continue."""
        group = _Group(len(ranks), self.timeout)
        group.threads = {new: (self.threads[old][0], 1) for new, old in enumerate(ranks)}
        return group

    def end(self, reason: str) -> None:
        """End the group and wake all ranks; the first reason is kept."""
        with self.changed:
            self.error = self.error or reason
            self.changed.notify_all()

    def lose(self, rank: int, what: str) -> None:
        with self.changed:
            self.lost.setdefault(rank, what)
            self.revoke()

    def revoke(self) -> None:
        """Wake all ranks, which must agree on how to continue."""
        self.revoked = True
        self.changed.notify_all()

    def enter(self, rank: int, operation: str, agreement: bool = False) -> None:
        """Begin a call of a rank in this thread; raise if it may not."""
        thread, lives = self.threads.get(rank, (None, 0))
        if thread is not current_thread():
            self.threads[rank] = current_thread(), lives + 1
        self.check(rank, operation, agreement)

    def check_member(self, rank: int, operation: str) -> None:
        if rank in self.lost:
            raise CommError(f"{operation}: rank {rank} {self.lost[rank]}; it is out of the group.")

    def check(self, rank: int, operation: str, agreement: bool = False) -> None:
        """Raise a CommError if the group was ended or, but for an `agreement`, is revoked."""
        if self.error is not None:
            raise CommError(self.error)
        self.check_member(rank, operation)
        if self.revoked and not agreement:
            who = "; ".join(f"rank {i} {what}" for i, what in sorted(self.lost.items())) or "another rank asks for it"
            raise RankLostError(f"{operation}: {who}; survivors() is the group of those who are left.",
                                tuple(sorted(self.lost)))

    def wait(self, rank: int, operation: str, ready: Callable[[], bool], missing: Callable[[], list[int]],
             late: Callable[[], str], agreement: bool = False) -> None:
        """Wait until `ready`; lose `missing` ranks whose threads have ended, and raise `late` after the timeout."""
        begin = monotonic()
        while not ready() and self.error is None and (agreement or not self.revoked):
            passed = monotonic() - begin
            if passed >= self.timeout:
                self.end(late())
            elif not self.changed.wait(min(_LOOK, self.timeout - passed)) and not ready():
                self._look_after(rank, missing())
        if not ready():  # a complete meeting counts, even if the group ends right after it
            self.check(rank, operation)

    def _look_after(self, rank: int, others: list[int]) -> None:
        """Lose the ranks whose threads have ended; the threads of earlier work have successors."""
        mine = self.threads[rank][1]
        for other in others:
            thread, lives = self.threads.get(other, (None, 0))
            if thread is not None and lives >= mine and not thread.is_alive():
                self.lose(other, "ended: its thread is not alive any more")


class ThreadComm(Comm):
    """A place in a group of threads; made by `thread_comms`."""

    def __init__(self, group: _Group, rank: int) -> None:
        self.rank, self.size = rank, group.size
        self.hosts = (gethostname(),) * group.size
        self._group = group
        self._calls = 0
        self._agreements = 0
        self._agreed = False  # the last agreement was that a rank is lost
        self._next: ThreadComm | None = None  # this rank's place in the group of the remaining ranks

    def _meet(self, operation: str, brought: object, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait for all ranks and return the result of `combine`, called once with their values in order."""
        group = self._group
        with group.changed:
            number, self._calls = self._calls, self._calls + 1
            group.enter(self.rank, operation)
            meeting = group.meetings.setdefault(number, _Meeting(operation))
            if meeting.operation != operation:
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
            self._wait_for(meeting, operation, lambda: meeting.done)
            meeting.left += 1
            if meeting.left == self.size:
                del group.meetings[number]
            return meeting.result

    def _wait_for(self, meeting: _Meeting, operation: str, ready: Callable[[], bool], agreement: bool = False) -> None:
        group = self._group

        def missing() -> list[int]:
            return [i for i in range(self.size) if i not in meeting.brought and i not in group.lost]

        group.wait(self.rank, operation, ready, missing,
                   lambda: f"{operation}: rank {', '.join(map(str, missing()))} did not come within "
                           f"{group.timeout:g} s.", agreement)

    def _gate(self, operation: str, text: str) -> list[str]:
        texts: list[str] = self._meet(operation, text, list)
        return texts

    def _move(self, operation: str, out: Moves, into: Moves) -> None:
        def copied(brought: list[tuple[Moves, Moves]]) -> None:
            for rank, (_, places) in enumerate(brought):
                for source, arrays in places.items():
                    for place, array in zip(arrays, brought[source][0][rank], strict=True):
                        np.copyto(place, array)

        self._meet(operation, (out, into), copied)

    def _end(self, reason: str) -> None:
        self._group.end(reason)

    def send(self, array: Array, to: int) -> None:
        check_rank("send", to, self.size)
        sent_array("send", array)
        group = self._group
        with group.changed:
            group.enter(self.rank, "send")
            group.posted[self.rank, to].append(array.copy())
            group.changed.notify_all()

    def recv(self, source: int) -> Array:
        check_rank("recv", source, self.size)
        group = self._group
        with group.changed:
            group.enter(self.rank, "recv")
            posted = group.posted[source, self.rank]
            group.wait(self.rank, "recv", lambda: bool(posted), lambda: [source],
                       lambda: f"recv: rank {source} sent nothing to rank {self.rank} within {group.timeout:g} s.")
            return posted.popleft()

    def split(self, color: int) -> Comm:
        def groups(colors: list[int]) -> list[ThreadComm]:
            members = {c: [i for i, other in enumerate(colors) if other == c] for c in colors}
            by_color = {c: self._group.part(ranks) for c, ranks in members.items()}
            return [ThreadComm(by_color[c], members[c].index(i)) for i, c in enumerate(colors)]

        mine: ThreadComm = self._meet("split", color, groups)[self.rank]
        return mine

    def exchange(self, value: object, combine: Combine = list) -> list[Any]:
        """Return the result of `combine`, called once with the values of all ranks; nothing is copied."""
        result: list[Any] = self._meet("exchange", value, combine)
        return result

    def is_ended(self) -> bool:
        return self._group.error is not None

    def abort(self, reason: str) -> None:
        self._group.end(f"the group was ended by rank {self.rank}: {reason}")

    def lose(self) -> None:
        """Declare this rank lost: its calls raise a CommError, those of others a RankLostError."""
        group = self._group
        with group.changed:
            group.lose(self.rank, "was declared lost")
            if self._next is not None:
                self._next.lose()

    def _agree(self, operation: str, brought: object, combine: Callable[[dict[int, Any]], Any]) -> Any:
        """Wait for the remaining ranks and return the result of `combine`, called once with their values by rank."""
        group = self._group
        with group.changed:
            group.enter(self.rank, operation, agreement=True)
            number, self._agreements = self._agreements, self._agreements + 1
            meeting = group.agreements.setdefault(number, _Meeting(operation))
            meeting.brought[self.rank] = brought

            def ready() -> bool:
                if not meeting.done and set(range(self.size)) <= meeting.brought.keys() | group.lost.keys():
                    meeting.result = combine(meeting.brought)
                    meeting.done = True
                    group.changed.notify_all()
                return meeting.done

            self._wait_for(meeting, operation, ready, agreement=True)
            return meeting.result

    def commit(self, ok: bool) -> bool:
        group = self._group
        if self._agreed:  # the others are in `survivors` already
            return False

        def combine(votes: dict[int, bool]) -> tuple[bool, bool]:
            if group.lost:
                group.revoke()
            return not group.revoked, not group.revoked and all(votes.values())

        whole, agreed = self._agree("commit", bool(ok), combine)
        self._agreed = not whole
        return bool(agreed)

    def survivors(self) -> tuple[Comm, list[int]]:
        group = self._group
        with group.changed:
            group.enter(self.rank, "survivors", agreement=True)
            group.revoke()
        self.commit(False)

        def combine(brought: dict[int, object]) -> tuple[_Group, list[int]]:
            left = [i for i in range(self.size) if i not in group.lost]
            return group.part(left), left

        smaller, left = self._agree("survivors", None, combine)
        with group.changed:
            group.check_member(self.rank, "survivors")
            self._next = ThreadComm(smaller, left.index(self.rank))
        return self._next, left


def thread_comms(size: int, timeout: float = TIMEOUT) -> list[ThreadComm]:
    """Make the places of a group of `size` threads; a rank that waits gives up after `timeout` seconds."""
    if size < 1 or not timeout > 0:
        raise ValueError(f"thread_comms: size is {size} and timeout is {timeout}; at least one rank and a positive "
                         f"time are required.")
    group = _Group(size, timeout)
    return [ThreadComm(group, rank) for rank in range(size)]
