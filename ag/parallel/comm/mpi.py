"""Groups of processes over MPI that outlive lost ranks.

Arrays move by ``Isend``, ``Irecv`` and ``Test``: Open MPI's collectives can leave a result unfilled, without an error,
when a rank is lost.  Of ULFM only Agree is used; its Revoke and Shrink crash when a second rank is lost meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice, zip_longest
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
    from mpi4py.MPI import Intracomm as MPIComm
    from mpi4py.MPI import Request


_PIECE = 1 << 25  # bytes of a message at most: while MPI copies one no heartbeat goes out
_WINDOW = 8  # messages that a rank receives at a time
_DRAIN = 2.0  # seconds for the requests of a call that has failed to come to an end
_GRACE = 1.0  # seconds for what a process has sent before it left

_HEAD = 1024  # bytes that each rank sends to each at the beginning of a call
_GATES, _MOVES, _HEADS, _SENDS = 0, 1, 2, 3  # tags
_TAGS = 4
_BITS = 30  # of an agreement
_DONE, _WHOLE = 1, 2  # bits of an agreement: the step is done; no rank is known to be lost

Pending = list[tuple[int, "Request"]]  # with the rank at the other end


class MpiComm(Comm):
    """A place in a group of processes; a failed `commit`, an Agree, is the first Agree of `survivors`."""

    def __init__(self, process: MpiProcess, comm: MPIComm, name: str, tag: int, places: Sequence[int],
                 hosts: Sequence[str], timeout: float) -> None:
        self.rank, self.size, self.hosts, self.timeout = [*places].index(comm.rank), len(places), tuple(hosts), timeout
        self._process = process
        self._comm = comm  # may have lost processes, and other groups
        self._name, self._tag = name, tag  # equal on all ranks; the first of four tags of this group in `comm`
        self._places = [*places]  # numbers of the ranks in `comm`
        self._members = comm.Get_group().Translate_ranks(self._places, process.mpi.COMM_WORLD.Get_group())
        self._stages = 0  # gates, moves and agreements that this rank has done
        self._turn = Lock()
        self._error: str | None = None
        self._lost = False  # all calls are over, except for agreements
        self._agreed = False  # the last agreement was that a rank is lost
        self._sending: list[Pending] = []

    # -------------------------------------------------------------------------------------- errors

    def _check(self, operation: str, lost: bool = True) -> None:
        """Raise if the group was ended or, with `lost`, has lost a rank."""
        self._process.read_news()
        reason, stages = self._process.ended.get(self._name, ("", 0))
        if reason and stages <= self._stages:  # otherwise the rank that ended it is ahead: this call can complete
            self._error = self._error or reason
        if self._error is not None:
            raise CommError(self._error)
        if lost and (self._lost or self._name in self._process.broken):
            raise self._loss(operation)

    def _loss(self, operation: str) -> CommError:
        """Return the error for a lost rank, and tell the other ranks once."""
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
        """End the group and tell the others why."""
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
        """Look until no rank is missing; check from time to time whether it can still come."""
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
        """Send and receive arrays and wait for them; after an error MPI uses none of them."""
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
            if not isinstance(error, CommError):  # an interrupt: the state of this rank is unknown
                self.abort(f"{operation} was interrupted by {type(error).__name__}")
            self._drain(receiving, sending)
            raise

    def _drain(self, receiving: Pending, sending: Pending) -> None:
        """Wait until MPI writes to no array; arrays that it still reads are kept."""
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
            for tag, x in [(_HEADS, head), *((_SENDS, piece) for piece in pieces([copy.reshape(-1)]))]:
                pending.append((to, comm.Isend([x, byte], self._places[to], self._tag + tag)))

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
        colors = self._told("split", int(color))
        ranks = [i for i, other in enumerate(colors) if other == int(color)]
        part = None
        with suppress(Lost):
            part = self._process.inside("split", lambda: self._part(ranks))
        if not self.commit(part is not None) or part is None:
            raise self._loss("split")
        return MpiComm(self._process, part, f"{self._name}.{self._stages}.{color}", 0, range(part.size),
                       [self.hosts[i] for i in ranks], self.timeout)

    def _part(self, ranks: Sequence[int]) -> MPIComm:
        """Make a communicator of some of the ranks; all make this call."""
        comm = self._comm
        group = comm.Get_group().Incl([self._places[i] for i in ranks])
        if self.size < comm.size:  # a group cannot be made in a communicator with lost processes
            comm = self._process.mpi.Intracomm(comm.Shrink())
        part = comm.Create_group(group, self._tag + _HEADS)
        part.Set_errhandler(self._process.mpi.ERRORS_RETURN)
        return part

    # -------------------------------------------------------------------------------------- ranks that are lost

    def commit(self, ok: bool) -> bool:
        if self._agreed:  # the others are in `survivors` already
            return False
        if not self._process.recovers:
            return all(everyone(self, bool(ok)))
        if self._dead():
            self._loss("commit")
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
        """Replace bits by those that all ranks have set, or raise Lost on all ranks."""
        request = self._process.inside("commit", lambda: self._comm.Iagree(bits))
        others = self._others()

        def late(_: str) -> BaseException:
            self._process.die("commit, which waits for all ranks,")
            return CommError("commit: out of time.")

        try:
            self._wait("commit", lambda: [] if request.Test() else others, 0.005, late, False)
        except Lost:
            raise
        except BaseException as error:
            if not isinstance(error, CommError):
                self.abort(f"commit was interrupted by {type(error).__name__}")
            self._process.abandon([request])
            raise

    def survivors(self) -> tuple[Comm, list[int]]:
        if self._error is not None:
            raise CommError(self._error)
        loss = self._loss("survivors")
        if not isinstance(loss, RankLostError):
            raise loss
        self.commit(False)
        left = self._left()
        if self.rank not in left:
            raise CommError(f"survivors: the others take rank {self.rank} for lost; this process is out of the group.")
        return MpiComm(self._process, self._comm, f"{self._name}s", self._tag + _TAGS, [self._places[i] for i in left],
                       [self.hosts[i] for i in left], self.timeout), left

    def _left(self) -> list[int]:
        """Return the ranks that no remaining rank takes for lost, agreed on bit by bit."""
        while True:
            self._process.inside("Ack_failed", self._comm.Ack_failed)  # known losses do not fail an agreement
            dead, left = self._dead(), list[int]()
            with suppress(Lost):
                for begin in range(0, self.size, _BITS):
                    ranks = range(begin, min(begin + _BITS, self.size))
                    bits = np.array([sum(1 << k for k, i in enumerate(ranks) if i not in dead)], np.int32)
                    self._agree(bits)
                    left += [i for k, i in enumerate(ranks) if bits[0] >> k & 1]
                return left


def pieces(arrays: Sequence[Array]) -> Iterator[Array]:
    """Cut flat arrays into messages that are not too long."""
    for array in arrays:
        flat = array.view(np.uint8)
        yield from (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE))


_groups = count()


def mpi_comm(timeout: float = TIMEOUT) -> MpiComm:
    """Return the group of all processes of one mpiexec; a rank that waits longer than `timeout` seconds gives up."""
    if not timeout > 0:
        raise ValueError(f"mpi_comm: timeout is {timeout}; a positive number of seconds is required.")
    process = mpi_process()
    comm = MpiComm(process, process.duplicate(), f"{next(_groups)}", 0, range(process.size),
                   process.hosts or ["?"] * process.size, timeout)
    if not process.hosts:
        hosts = comm._told("mpi_comm", gethostname())
        if not comm.commit(True):  # from here on every remaining rank has the group
            raise comm._loss("mpi_comm")
        process.hosts = comm.hosts = tuple(hosts)
    return comm
