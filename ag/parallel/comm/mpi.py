"""Groups of processes, over MPI, as `ag.parallel.comm.comm.Comm` describes them; they outlive lost ranks.

Arrays move from rank to rank (``Isend``, ``Irecv``, ``Test``).  MPI's own collective operations are not used for data:
with those of Open MPI a lost rank can leave others with a result that was never filled in, and no error.  Of the
operations for lost ranks (ULFM) one is used, Agree: all who are left get the same answer, the bits that all of them
have set.  Its others, Revoke and Shrink, crash when a second rank is lost meanwhile, as every way to make a
communicator does in Open MPI 5.0; so ranks tell each other that a group is broken, agree on who is left, bit by bit,
and go on in the same communicator, with other tags.  Only ``split`` makes one.

Knows arrays and mpi4py; no tensor, no device.  `DistributedWorld` makes the group of all processes.

Every call begins with a few bytes from each rank to each, so who does not come, or calls something else, is named.  To
wait is to look, and to sleep ever longer in between.

**How agreements pair up.**  A step ends with ``commit``, which is an Agree.  Rank 2 of 3 is lost while rank 0 still
moves arrays, and rank 1 has all it needs:

    rank 0    RankLostError   survivors: Agree (not whole) --+             Agree (left: 0, 1) --+   goes on
    rank 1    commit:                    Agree (whole) ------+   False   survivors: Agree (left: 0, 1)   goes on

The first answer says that somebody is lost, to both of them; and a commit that failed so is the first Agree of
`survivors`.  An Agree in which a loss shows that not all ranks knew of is an error on all of them, and made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from socket import gethostname
from typing import TYPE_CHECKING

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm, Moves, check_rank, everyone, sent_array
from ag.parallel.comm.mpi_process import TIMEOUT, Lost, mpi_process
from ag.parallel.comm.mpi_waiting import MpiMember, Pending, pieces

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm as MPIComm

__all__ = ["MpiComm", "mpi_comm"]

_HEAD = 1024  # bytes that each rank sends to each at the beginning of a call
_GATES, _MOVES, _HEADS, _SENDS = 0, 1, 2, 3  # tags
_TAGS = 4
_BITS = 30  # of an agreement
_DONE, _WHOLE = 1, 2  # bits of an agreement: the step is done; nobody is known to be lost


class MpiComm(MpiMember):
    """A place in a group of processes; made by `mpi_comm`."""

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
            error = self._loss("send")
            raise error from lost

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
        ranks = [i for i, other in enumerate(colors) if other == int(color)]
        part = None
        with suppress(Lost):
            part = self._process.inside("split", lambda: self._part(ranks))
        if not self.commit(part is not None) or part is None:
            error = self._loss("split")
            raise error
        return MpiComm(self._process, part, f"{self._name}.{self._stages}.{color}", 0, range(part.size),
                       [self.hosts[i] for i in ranks], self.timeout)

    def _part(self, ranks: Sequence[int]) -> MPIComm:
        """A communicator of some of the ranks; all make this call."""
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
        """Replace bits by those that all ranks have set, or raise Lost, on all ranks."""
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
        """The ranks that nobody who is left takes for lost, agreed on bit by bit."""
        while True:
            self._process.inside("Ack_failed", self._comm.Ack_failed)  # these are no errors of an agreement any more
            dead, left = self._dead(), list[int]()
            with suppress(Lost):
                for begin in range(0, self.size, _BITS):
                    ranks = range(begin, min(begin + _BITS, self.size))
                    bits = np.array([sum(1 << k for k, i in enumerate(ranks) if i not in dead)], np.int32)
                    self._agree(bits)
                    left += [i for k, i in enumerate(ranks) if bits[0] >> k & 1]
                return left


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
    comm = MpiComm(process, process.duplicate(), f"{next(_groups)}", 0, range(process.size),
                   process.hosts or ["?"] * process.size, timeout)
    if not process.hosts:
        hosts = [json.loads(text) for text in comm._gate("mpi_comm", json.dumps(gethostname()))]
        if not comm.commit(True):  # after that no rank's loss can keep another one from having the group
            error = comm._loss("mpi_comm")
            raise error
        process.hosts = comm.hosts = tuple(hosts)
    return comm
