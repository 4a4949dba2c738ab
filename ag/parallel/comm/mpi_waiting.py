"""What every call of a group of processes is made of: to send and receive arrays, to wait, and to say what went wrong.

To wait is to look, and to sleep ever longer in between.  Whoever waits finds out that a rank is lost, that another rank
has ended the group, that one has left, or that time is up; and names the ranks it waits for, with their hosts.  Nothing
that was begun goes on when an error is raised: no message is written to an array that the caller has back.

Knows flat arrays and mpi4py; not what is sent, and why.  `ag.parallel.comm.mpi` makes calls of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice, zip_longest
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
    from mpi4py.MPI import Intracomm as MPIComm
    from mpi4py.MPI import Request

__all__ = ["MpiMember", "Pending", "pieces"]

_PIECE = 1 << 25  # bytes of a message at most: while MPI copies one no heartbeat goes out
_WINDOW = 8  # messages that a rank receives at a time
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
        In which the group is, perhaps with processes that are lost.
    name : str
        The group's name, the same on all its ranks.
    tag : int
        The first of four tags that only this group uses in `comm`.
    places : sequence of int
        The ranks' numbers in `comm`.
    hosts : sequence of str
        Of all ranks.
    timeout : float
        Seconds after which a rank that waits for others gives up.
    """

    def __init__(self, process: MpiProcess, comm: MPIComm, name: str, tag: int, places: Sequence[int],
                 hosts: Sequence[str], timeout: float) -> None:
        self.rank, self.size, self.hosts, self.timeout = [*places].index(comm.rank), len(places), tuple(hosts), timeout
        self._process, self._comm, self._name, self._tag = process, comm, name, tag
        self._places = [*places]
        self._members = comm.Get_group().Translate_ranks(self._places, process.mpi.COMM_WORLD.Get_group())
        self._stages = 0  # gates, moves and agreements that this rank has done
        self._turn = Lock()
        self._error: str | None = None
        self._lost = False  # whether all calls are over, but for agreements
        self._agreed = False  # whether the last agreement was that somebody is lost
        self._sending: list[Pending] = []

    # -------------------------------------------------------------------------------------- errors

    def _check(self, operation: str, lost: bool = True) -> None:
        """Raise if the group was ended or, if `lost`, has lost a rank."""
        self._process.read_news()
        reason, stages = self._process.ended.get(self._name, ("", 0))
        if reason and stages <= self._stages:  # otherwise whoever has ended it is farther, and this call can be done
            self._error = self._error or reason
        if self._error is not None:
            raise CommError(self._error)
        if lost and (self._lost or self._name in self._process.broken):
            raise self._loss(operation)

    def _loss(self, operation: str) -> CommError:
        """What to raise when a rank is lost, or another one says so; everybody else is told, once."""
        if not self._process.recovers:
            self._error = (f"{operation}: a rank was lost, and the job was started without fault tolerance, so it "
                           f"cannot go on; start it by mpiexec with --with-ft ulfm.")
            return CommError(self._error)
        if not self._lost:
            self._lost = self._process.lost = True
            self._tell({"group": self._name, "broken": 1})
        lost = self._dead()
        who = f"{self._named(lost)} was lost" if lost else "another rank asks for it"
        return RankLostError(f"{operation}: {who}; survivors() is the group of those who are left.", tuple(lost))

    def _dead(self) -> list[int]:
        """The ranks that are known to be lost."""
        comm = self._comm

        def failed() -> set[int]:
            return {*comm.Get_failed().Translate_ranks(None, comm.Get_group())}

        dead = self._process.inside("Get_failed", failed) if self._process.recovers else set()
        return [i for i, (place, member) in enumerate(zip(self._places, self._members, strict=True))
                if place in dead or member in self._process.dead]

    def _tell(self, message: dict[str, str | int]) -> None:
        self._process.tell([self._members[i] for i in self._others()], message)

    def _named(self, ranks: Sequence[int]) -> str:
        return ", ".join(f"rank {i} on {self.hosts[i]}" for i in ranks)

    def _stop(self, reason: str) -> CommError:
        """End the group for a reason that the others do not know of."""
        self._error = self._error or reason
        self._tell({"group": self._name, "reason": self._error[:600], "stages": self._stages})
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
        comm, byte, places, tag = self._comm, self._process.mpi.BYTE, self._places, self._tag + tag
        receiving: Pending = []
        sending: Pending = []
        columns = [[(i, x) for x in pieces(arrays)] for i, arrays in into.items()]
        to_come = (pair for row in zip_longest(*columns) for pair in row if pair is not None)
        window = max(_WINDOW, len(into))

        def receive() -> None:
            receiving.extend((i, comm.Irecv([x, byte], places[i], tag))
                             for i, x in islice(to_come, window - len(receiving)))

        def post() -> None:
            receive()
            sending.extend((i, comm.Isend([x, byte], places[i], tag)) for i in out for x in pieces(out[i]))

        def look() -> list[int]:
            receiving[:] = [pair for pair in receiving if not pair[1].Test()]
            sending[:] = [pair for pair in sending if not pair[1].Test()]
            receive()
            return [rank for rank, _ in (*receiving, *sending)]

        try:
            self._process.inside(operation, post)
            self._wait(operation, look, most, lambda who: self._stop(f"{operation}: {who} {what} within "
                                                                     f"{self.timeout:g} s."))
        except Lost as lost:
            error = self._loss(operation)
            self._drain(receiving, sending)
            raise error from lost
        except BaseException as error:
            if not isinstance(error, CommError):  # an interrupt: nobody knows how far this rank has got
                self.abort(f"{operation} was interrupted by {type(error).__name__}")
            self._drain(receiving, sending)
            raise

    def _drain(self, receiving: Pending, sending: Pending) -> None:
        """Wait until MPI does not write to arrays any more; what it still reads stays."""
        end, pause = monotonic() + _DRAIN, Pause()
        for _, request in receiving:
            with suppress(Lost, CommError):
                self._process.inside("Cancel", request.Cancel)
        while (receiving := [pair for pair in receiving if not self._is_over(pair[1])]) and monotonic() < end:
            pause()
        self._process.abandon(request for _, request in (*receiving, *sending) if not self._is_over(request))

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
