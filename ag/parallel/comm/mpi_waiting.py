"""What every call of a group of processes is made of: to send and receive arrays, to wait, and to say what went wrong.

To wait is to look, and to sleep ever longer in between.  Whoever waits finds out that a rank is lost, that another rank
has ended the group, that one has left, or that time is up; and names the ranks it waits for, with their hosts.  Nothing
that was begun goes on when an error is raised: no message is written to an array that the caller has back.

Knows flat arrays and mpi4py; not what is sent, and why.  `ag.parallel.comm.mpi` makes calls of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm, Moves
from ag.parallel.comm.mpi_process import Lost, MpiProcess, Pause

if TYPE_CHECKING:
    from mpi4py.MPI import Comm as MPIComm
    from mpi4py.MPI import Request

__all__ = ["MpiMember", "Pending", "pieces"]

_PIECE = 1 << 30  # bytes of a message at most: MPI counts them in 32 bits
_DRAIN = 2.0  # seconds for the requests of a call that has failed to come to an end
_GRACE = 1.0  # seconds for what a process has sent before it left

Pending = list[tuple[int, "Request"]]  # with the rank at the other end


class MpiMember(Comm):
    """A member of a group of processes, which can wait for others.

    Parameters
    ----------
    process : MpiProcess
        MPI of this process.
    comm : mpi4py.MPI.Comm
    name : str
        The group's name, the same on all its ranks.
    timeout : float
        Seconds after which a rank that waits for others gives up.
    hosts : sequence of str
        Of all ranks.
    """

    def __init__(self, process: MpiProcess, comm: MPIComm, name: str, timeout: float, hosts: Sequence[str]) -> None:
        self.rank, self.size, self.timeout = comm.rank, comm.size, timeout
        self._process, self._comm, self._name = process, comm, name
        self._members = comm.Get_group().Translate_ranks(None, process.mpi.COMM_WORLD.Get_group())
        self._stages = 0  # gates, moves and agreements that this rank has done
        self._turn = Lock()
        self._error: str | None = None
        self._lost = False  # whether all calls are over, but for agreements
        self._agreed = False  # whether the last agreement was that somebody is lost
        self._sending: list[Pending] = []
        self.hosts = tuple(hosts)

    # -------------------------------------------------------------------------------------- errors

    def _check(self, operation: str, lost: bool = True) -> None:
        """Raise if the group was ended or, if `lost`, has lost a rank."""
        self._process.read_news()
        reason, stages = self._process.ended.get(self._name, ("", 0))
        if reason and stages <= self._stages:  # otherwise whoever has ended it is farther, and this call can be done
            self._error = self._error or reason
        if self._error is not None:
            raise CommError(self._error)
        if lost and self._lost:
            raise self._loss(operation)

    def _loss(self, operation: str) -> CommError:
        """What to raise when MPI says that a rank is lost; all others are told."""
        process, comm = self._process, self._comm
        if not process.recovers:
            self._error = (f"{operation}: a rank was lost, and the job was started without fault tolerance, so it "
                           f"cannot go on; start it by mpiexec with --with-ft ulfm, as python -m ag launch does.")
            return CommError(self._error)
        if not self._lost:
            self._lost = process.lost = True
            with suppress(Lost, CommError):
                process.inside("Revoke", comm.Revoke)
        lost: set[int] = {i for i, member in enumerate(self._members) if member in process.dead}
        with suppress(Lost, CommError):
            failed = process.inside("Get_failed", lambda: comm.Get_failed().Translate_ranks(None, comm.Get_group()))
            lost |= {*failed}
        who = f"{self._named(sorted(lost))} was lost" if lost else "another rank says that one was lost"
        return RankLostError(f"{operation}: {who}; survivors() is the group of those who are left.",
                             tuple(sorted(lost)))

    def _named(self, ranks: Sequence[int]) -> str:
        return ", ".join(f"rank {i} on {self.hosts[i]}" for i in ranks)

    def _stop(self, reason: str) -> CommError:
        """End the group for a reason that the others do not know of."""
        self._error = self._error or reason
        self._process.tell([self._members[i] for i in self._others()],
                           {"group": self._name, "reason": self._error[:600], "stages": self._stages})
        return CommError(self._error)

    def _end(self, reason: str) -> None:
        self._error = self._error or reason

    def abort(self, reason: str) -> None:
        self._stop(f"the group was ended by rank {self.rank}: {reason}")

    # -------------------------------------------------------------------------------------- waiting

    def _wait(self, operation: str, look: Callable[[], Sequence[int]], most: float,
              late: Callable[[str], BaseException], lost: bool = True) -> None:
        """Look until no rank is missing; every now and then, whether it can still come."""
        pause, end, gone = Pause(most), monotonic() + self.timeout, inf
        missing: Sequence[int] = range(self.size + 1)
        for looks in count(1):
            before, missing = len(missing), self._process.inside(operation, look)
            if not missing:
                return
            if len(missing) < before:
                pause.restart()
            if looks % 8 == 0:
                self._check(operation, lost)
                left = sorted({i for i in missing if self._members[i] in self._process.left})
                gone = min(gone, monotonic() + _GRACE) if left else inf
                if monotonic() > gone:
                    raise self._stop(f"{operation}: {self._named(left)} has come to the end of its program, and takes "
                                     f"no part; all ranks must make the same calls.")
                if monotonic() > end:
                    raise late(self._named(sorted({*missing})))
            pause()

    def _exchange(self, operation: str, tag: int, out: Moves, into: Moves, what: str = "did not come",
                  most: float = 0.005) -> None:
        """Send and receive arrays, and wait for all of them; with an error, none of them is used by MPI any more."""
        comm, byte = self._comm, self._process.mpi.BYTE
        pending: Pending = []

        def post() -> None:
            pending.extend((i, comm.Irecv([x, byte], i, tag)) for i, arrays in into.items() for x in pieces(arrays))
            pending.extend((i, comm.Isend([x, byte], i, tag)) for i, arrays in out.items() for x in pieces(arrays))

        def look() -> list[int]:
            return [rank for rank, request in pending if not request.Test()]

        try:
            self._process.inside(operation, post)
            self._wait(operation, look, most, lambda who: self._stop(f"{operation}: {who} {what} within "
                                                                     f"{self.timeout:g} s."))
        except Lost as lost:
            error = self._loss(operation)
            self._drain(pending)
            raise error from lost
        except BaseException as error:
            if not isinstance(error, CommError):  # an interrupt: nobody knows how far this rank has got
                self.abort(f"{operation} was interrupted by {type(error).__name__}")
            self._drain(pending)
            raise

    def _drain(self, pending: Pending) -> None:
        """Wait until MPI does not write to arrays any more."""
        end, pause = monotonic() + _DRAIN, Pause()
        for _, request in pending:
            with suppress(Lost, CommError):
                self._process.inside("Cancel", request.Cancel)
        while pending and monotonic() < end:
            pending = [(rank, request) for rank, request in pending if not self._is_over(request)]
            if pending:
                pause()
        self._process.abandon(request for _, request in pending)

    def _is_over(self, request: Request) -> bool:
        try:
            return self._process.inside("Test", request.Test)
        except (Lost, CommError):
            return True

    @contextmanager
    def _one_call(self, operation: str, lost: bool = True) -> Iterator[None]:
        if not self._turn.acquire(blocking=False):
            raise CommError(f"{operation}: another thread of rank {self.rank} is in a call of this group; only one may "
                            f"be at a time, as all ranks must make the same calls in the same order.")
        try:
            self._check(operation, lost)
            yield
            self._stages += 1
        finally:
            self._turn.release()


def pieces(arrays: Sequence[Array]) -> Iterator[Array]:
    """The bytes of flat arrays, in messages that are not too long."""
    for array in arrays:
        flat = array.view(np.uint8)
        yield from (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE))
