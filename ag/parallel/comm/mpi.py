"""Groups of processes, over MPI, as `ag.parallel.comm.comm.Comm` describes them; they outlive lost ranks.

Arrays move from rank to rank (``Isend``, ``Irecv``, ``Test``).  MPI's own collective operations are not used for data:
with those of Open MPI a lost rank can leave others with a result that was never filled in, and no error.  Of the
operations for lost ranks (ULFM) these are used:

    Revoke    every call in the group ends, on all ranks
    Agree     all who are left get the same answer: the bits that all of them have set
    Shrink    a new communicator of those who are left; another Agree follows, as all must have it before one revokes it

Every call begins with a few bytes from each rank to each, so who does not come, or calls something else, is named.  To
wait is to look, and to sleep ever longer in between.

**How agreements pair up.**  A step ends with ``commit``, which is an Agree.  Rank 2 of 3 is lost while rank 0 still
moves arrays, and rank 1 has all it needs:

    rank 0    RankLostError   survivors: Revoke   Agree (not whole) --+   Shrink
    rank 1    commit:                             Agree (whole) ------+   False   survivors: Shrink

The answer says that somebody is lost, to both of them; and a commit that failed so is the Agree of `survivors`.

Knows arrays and mpi4py; no tensor, no device.  `DistributedWorld` makes the group of all processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from socket import gethostname
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm, Moves, check_rank, everyone, sent_array
from ag.parallel.comm.mpi_process import TIMEOUT, Lost, MpiProcess, Pause, mpi_process

if TYPE_CHECKING:
    from mpi4py.MPI import Comm as MPIComm
    from mpi4py.MPI import Request

__all__ = ["MpiComm", "mpi_comm"]

_HEAD = 1024  # bytes that each rank sends to each at the beginning of a call
_PIECE = 1 << 30  # bytes of a message at most: MPI counts them in 32 bits
_GATES, _MOVES, _HEADS, _SENDS = 0, 1, 2, 3  # tags
_DONE, _WHOLE = 1, 2  # bits of an agreement: the step is done; nobody is known to be lost
_DRAIN = 2.0  # seconds for the requests of a call that has failed to come to an end
_GRACE = 1.0  # seconds for what a process has sent before it left

Pending = list[tuple[int, "Request"]]  # with the rank at the other end


class MpiComm(Comm):
    """A place in a group of processes; made by `mpi_comm`.

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
            pending.extend((i, comm.Irecv([x, byte], i, tag)) for i, arrays in into.items() for x in _pieces(arrays))
            pending.extend((i, comm.Isend([x, byte], i, tag)) for i, arrays in out.items() for x in _pieces(arrays))

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

    # -------------------------------------------------------------------------------------- calls

    def _gate(self, operation: str, text: str) -> list[str]:
        mine = f"{operation}\n{text}".encode()
        others, room = self._others(), _HEAD - 8
        head = np.frombuffer(len(mine).to_bytes(8, "little") + mine[:room].ljust(room), np.uint8)
        with self._one_call(operation):
            heads = {i: np.empty(_HEAD, np.uint8) for i in others}
            self._exchange(operation, _GATES, {i: [head] for i in others}, {i: [heads[i]] for i in others})
            sizes = {i: int.from_bytes(heads[i][:8].tobytes(), "little") for i in others}
            rests = {i: np.empty(sizes[i] - room, np.uint8) for i in others if sizes[i] > room}
            rest = np.frombuffer(mine[room:], np.uint8)
            self._exchange(operation, _GATES, {i: [rest] for i in others}, {i: [x] for i, x in rests.items()})
        texts = [mine] * self.size
        for i in others:
            texts[i] = heads[i][8 : 8 + sizes[i]].tobytes() + (rests[i].tobytes() if i in rests else b"")
        told = [text.decode().split("\n", 1) for text in texts]
        for i, (theirs, _) in enumerate(told):
            if theirs != told[0][0]:
                self._refuse(f"{theirs}: rank {i} calls it where rank 0 calls {told[0][0]}; all ranks must make the "
                             f"same calls in the same order.")
        return [text for _, text in told]

    def _move(self, operation: str, out: Moves, into: Moves) -> None:
        with self._one_call(operation):
            self._exchange(operation, _MOVES, out, into, most=0.001)

    def send(self, array: Array, to: int) -> None:
        check_rank("send", to, self.size)
        copy = sent_array("send", array).copy()
        self._check("send")
        comm, byte = self._comm, self._process.mpi.BYTE
        head = np.frombuffer(json.dumps([copy.dtype.str, copy.shape]).encode().ljust(_HEAD), np.uint8)

        def post() -> None:
            self._sending = [[(i, r) for i, r in pending if not r.Test()] for pending in self._sending]
            self._sending = [pending for pending in self._sending if pending]
            pending: Pending = []
            self._sending.append(pending)
            for tag, x in [(_HEADS, head), *((_SENDS, piece) for piece in _pieces([copy.reshape(-1)]))]:
                pending.append((to, comm.Isend([x, byte], to, tag)))

        try:
            self._process.inside("send", post)
        except Lost as lost:
            raise self._loss("send") from lost

    def recv(self, source: int) -> Array:
        check_rank("recv", source, self.size)
        self._check("recv")
        head = np.empty(_HEAD, np.uint8)
        what = f"sent nothing to rank {self.rank}"
        self._exchange("recv", _HEADS, {}, {source: [head]}, what)
        kind, shape = json.loads(head.tobytes())
        array = np.empty(shape, kind)
        self._exchange("recv", _SENDS, {}, {source: [array.reshape(-1)]}, what, 0.001)
        return array

    def split(self, color: int) -> Comm:
        colors = [int(text) for text in self._gate("split", str(int(color)))]
        mine = sorted({*colors}).index(int(color))  # MPI's colors are not negative
        ranks = [i for i, other in enumerate(colors) if other == int(color)]
        part = None
        with suppress(Lost):
            part = self._process.inside("split", lambda: self._comm.Split(mine, self.rank))
        if not self.commit(part is not None) or part is None:
            raise self._loss("split")
        return self._made(part, f"{self._name}.{self._stages}.{color}", ranks)

    def _made(self, comm: MPIComm, name: str, ranks: Sequence[int]) -> MpiComm:
        comm.Set_errhandler(self._process.mpi.ERRORS_RETURN)
        return MpiComm(self._process, comm, name, self.timeout, [self.hosts[i] for i in ranks])

    # -------------------------------------------------------------------------------------- ranks that are lost

    def commit(self, ok: bool) -> bool:
        if self._agreed:  # the others are in `survivors` already
            return False
        if not self._process.recovers:
            return all(everyone(self, bool(ok)))
        bits = np.array([0 if self._lost else _WHOLE | _DONE * bool(ok)], np.int32)
        with self._one_call("commit", False):
            try:
                self._agree(bits)
            except Lost:
                bits[0] = 0
        if not bits[0] & _WHOLE:
            self._lost = self._agreed = True
        return bool(bits[0] & _DONE)

    def _agree(self, bits: Array) -> None:
        """Replace bits by those that all ranks have set, or raise Lost, on all ranks."""
        request = self._process.inside("commit", lambda: self._comm.Iagree(bits))
        others = self._others()

        def late(_: str) -> BaseException:
            self._process.die("commit, which waits for all ranks,")
            return CommError("commit: out of time.")

        self._wait("commit", lambda: [] if request.Test() else others, 0.005, late, False)

    def survivors(self) -> tuple[Comm, list[int]]:
        process, comm = self._process, self._comm
        if self._error is not None:
            raise CommError(self._error)
        loss = self._loss("survivors")
        if not isinstance(loss, RankLostError):
            raise loss
        self.commit(False)
        smaller = process.inside("Shrink", comm.Shrink)
        with suppress(Lost):  # a Revoke of the new communicator crashes a rank that is not out of Shrink yet
            self._agree(np.zeros(1, np.int32))
        old = smaller.Get_group().Translate_ranks(None, comm.Get_group())
        return self._made(smaller, f"{self._name}s", old), old


def _pieces(arrays: Sequence[Array]) -> Iterator[Array]:
    """The bytes of flat arrays, in messages that are not too long."""
    for array in arrays:
        flat = array.view(np.uint8)
        yield from (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE))


_groups = count()


def mpi_comm(timeout: float = TIMEOUT) -> MpiComm:
    """The group of all processes that one mpiexec has started; all of them make this call.

    Parameters
    ----------
    timeout : float, optional
        Seconds after which a rank that waits for others gives up, and names them.  A rank that is lost is noticed much
        earlier; this is about those that are slow, and must be longer than a step may take.

    Raises
    ------
    ValueError
        If `timeout` is not positive.
    ImportError
        If mpi4py or an MPI is missing.
    """
    if not timeout > 0:
        raise ValueError(f"mpi_comm: timeout is {timeout}; a positive number of seconds is required.")
    process = mpi_process()
    comm = MpiComm(process, process.duplicate(), f"{next(_groups)}", timeout, process.hosts or ["?"] * process.size)
    if not process.hosts:
        hosts = [json.loads(text) for text in comm._gate("mpi_comm", json.dumps(gethostname()))]
        if not comm.commit(True):  # after that no rank's loss can keep another one from having the group
            raise comm._loss("mpi_comm")
        process.hosts = comm.hosts = tuple(hosts)
    return comm
