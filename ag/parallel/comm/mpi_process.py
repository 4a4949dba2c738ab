"""MPI in this process: started once, one thread in it at a time, with deadlines, news between processes, and the end.

Two threads in MPI at a time have crashed when a rank was lost.  A heartbeat thread looks in every 50 ms, as Open MPI
sends its heartbeats only when MPI is called.  A watchdog kills the process when a stay in MPI exceeds its limit.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, RLock, Thread
from time import monotonic, sleep
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from ag.errors import CommError, RankLostError
from ag.log import Forgiving
from ag.parallel.comm.mpi_settings import FAULT_TOLERANCE, rank_environment

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm as MPIComm
    from mpi4py.MPI import Request

T = TypeVar("T")

TIMEOUT = 900.0  # seconds to wait for a rank that is alive: more than `dp_train` waits for a device
LIMIT = 30.0  # seconds for what no rank that computes can delay
_BEAT = 0.05  # seconds between two looks into MPI
_NEWS = 2048  # bytes of a message


class Lost(Exception):  # noqa: N818 - callers make a `RankLostError` of it
    """MPI reports that a rank is lost, or that another rank has said so."""


class Pause:
    """Waits between two looks: ever longer, but at most a part of the time waited so far, and `most` seconds."""

    def __init__(self, most: float = 0.005) -> None:
        self._most = most
        self.restart()

    def restart(self) -> None:
        self._begin = monotonic()

    def __call__(self) -> None:
        passed = monotonic() - self._begin
        sleep(0 if passed < 0.002 else min(self._most, passed / 20))


def _start(mpi: ModuleType) -> None:
    """Start MPI, which waits for all processes, without Python's lock, so that other threads can end this one."""
    start = getattr(ctypes.CDLL(mpi.__file__), "MPI_Init_thread", None)
    if start is None:  # as on Windows, where a library shows its own functions only
        mpi.Init_thread()
    elif (code := start(None, None, ctypes.c_int(mpi.THREAD_MULTIPLE), ctypes.byref(ctypes.c_int()))) != mpi.SUCCESS:
        raise CommError(f"mpi_comm: MPI does not start, with its error {code}; `python -m ag doctor` says what is "
                        f"missing.")
    for comm in (mpi.COMM_WORLD, mpi.COMM_SELF):
        comm.Set_errhandler(mpi.ERRORS_RETURN)


class MpiProcess:
    """MPI of this process; made by `mpi_process`."""

    def __init__(self) -> None:
        for name, value in rank_environment().items():
            os.environ.setdefault(name, value)
        self._lock = RLock()
        self._stay: tuple[str, float] | None = None
        self._over = Event()
        Thread(target=self._watch, name="ag-mpi-watchdog", daemon=True).start()
        try:
            self._begin()
        except BaseException:
            self._over.set()
            raise

    def _begin(self) -> None:
        if "mpi4py.MPI" not in sys.modules:
            import mpi4py

            mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI

        self._finalize = not MPI.Is_initialized()  # otherwise the program that started it ends it
        if self._finalize:
            _start(MPI)  # however long another process takes to come here
        self._stay = ("the start of MPI", monotonic() + TIMEOUT)
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise CommError("mpi_comm: MPI was started for one thread; import ag's world before mpi4py's MPI, or leave "
                            "mpi4py.rc.thread_level as it is.")
        self.mpi = MPI
        self._losses = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
        self._pid = os.getpid()
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        started = max(int(os.environ.get(name, "1")) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
        if self.size == 1 < started:
            raise CommError(f"mpi_comm: this process was started as one of {started}, and its MPI finds no other; "
                            f"start it by the mpiexec of the MPI that mpi4py uses, which `python -m ag doctor` names.")
        self.recovers = os.environ.get(FAULT_TOLERANCE) == "1"  # MPI can go on without a lost process
        self.hosts: tuple[str, ...] = ()  # of all processes, once they have told each other
        self.lost = False  # MPI cannot be ended: a process was lost, or a request did not end
        self.left: set[int] = set()  # processes that have ended
        self.dead: set[int] = set()  # processes that are known to be lost
        self.broken: set[str] = set()  # groups in which another process misses a rank
        self.ended: dict[str, tuple[str, int]] = {}  # groups that another process ended: why, and after which stage
        self._sending: list[tuple[Request, object]] = []
        self._abandoned: list[Request] = []
        self._news = self.duplicate()
        self._letters: dict[int, tuple[Request, bytearray]] = {}
        for other in {*range(self.size)} - {self.rank}:
            try:
                self._letters[other] = self.inside("news", partial(self._letter, other))
            except Lost:
                self.dead.add(other)
        self._stay = None
        Thread(target=self._beat, name="ag-mpi-heartbeat", daemon=True).start()
        atexit.register(self._leave)

    def _duplicate(self) -> MPIComm:
        comm = self.mpi.COMM_WORLD.Dup()
        comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        return comm

    def duplicate(self) -> MPIComm:
        """Make a communicator of all processes, which all make this call."""
        try:
            return self.inside("the start of a group", self._duplicate, TIMEOUT)
        except Lost as lost:
            raise RankLostError("mpi_comm: a rank was lost before all ranks had their group; start the job "
                                "again.") from lost

    def inside(self, what: str, call: Callable[[], T], limit: float = LIMIT) -> T:
        """Return the result of a call of MPI, alone in it, which `what` names; Lost is raised for a lost rank."""
        if os.getpid() != self._pid:
            raise CommError(f"{what}: this is a forked child of rank {self.rank}, which has no part in its groups; "
                            f"start processes by multiprocessing's 'spawn', or use threads.")
        with self._lock:
            before = self._stay
            try:
                self._stay = (what, monotonic() + limit)
                return call()
            except self.mpi.Exception as error:
                if error.Get_error_class() in self._losses:
                    self.lost = True
                    raise Lost from error
                raise CommError(f"{what}: MPI reports: {error.Get_error_string()}.") from error
            finally:
                self._stay = before

    def _beat(self) -> None:
        while not self._over.wait(_BEAT):
            if self._lock.acquire(blocking=False):
                try:
                    if not self._over.is_set():  # MPI may not be called after its end
                        self.mpi.COMM_SELF.Iprobe()  # an error on other communicators once a rank is lost
                finally:
                    self._lock.release()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            stay = self._stay
            if stay is not None and monotonic() > stay[1]:
                if stay[0] != "the start of MPI" and self._lock.acquire(timeout=1):  # no thread is inside: an interrupt
                    self._stay = None
                    self._lock.release()
                else:
                    self.die(stay[0])

    def die(self, what: str) -> None:
        """Print what this process was doing and kill it, so that others do not wait."""
        out = Forgiving(sys.stderr)
        out.write(f"ag: {what} did not end in time; this process (rank {getattr(self, 'rank', '?')}) ends itself by "
                  f"SIGKILL, so that the others lose it. Its threads were here:\n")
        out.flush()
        with suppress(OSError, ValueError, AttributeError, RuntimeError):  # stderr may be missing, closed or no file
            faulthandler.dump_traceback()
        os.kill(os.getpid(), signal.SIGKILL)

    def abandon(self, requests: Iterable[Request]) -> None:
        """Keep requests that did not end, and their arrays; `MPI_Finalize` would wait for them."""
        self._abandoned.extend(requests)
        self.lost |= bool(self._abandoned)

    def _letter(self, source: int) -> tuple[Request, bytearray]:
        buffer = bytearray(_NEWS)
        return self._news.Irecv([buffer, self.mpi.BYTE], source), buffer

    def tell(self, processes: Collection[int], message: dict[str, str | int]) -> None:
        text = json.dumps(message).encode().ljust(_NEWS)
        for other in processes:
            if other not in self.dead:
                try:
                    request = self.inside("news", partial(self._news.Isend, [text, self.mpi.BYTE], other))
                    self._sending.append((request, text))
                except (Lost, CommError):
                    self.dead.add(other)

    def read_news(self) -> None:
        for source, (request, buffer) in [*self._letters.items()]:
            try:
                while self.inside("news", request.Test):
                    told = json.loads(bytes(buffer))
                    request, buffer = self._letters[source] = self.inside("news", partial(self._letter, source))
                    if "left" in told:
                        self.left.add(source)
                        self.lost |= bool(told["lost"])
                    elif "broken" in told:
                        self.broken.add(told["group"])
                    else:
                        self.ended.setdefault(told["group"], (told["reason"], told["stages"]))
            except Lost:
                self.dead.add(source)
                del self._letters[source]

    def _leave(self) -> None:
        """Tell the others, wait for them, and end MPI."""
        if os.getpid() != self._pid:
            return
        others = {*range(self.size)} - {self.rank}
        self.tell(others, {"left": self.rank, "lost": int(self.lost)})
        end, pause = monotonic() + TIMEOUT, Pause(0.02)  # `MPI_Finalize` would spin
        self.read_news()
        while others - self.left - self.dead:
            if monotonic() > end:
                self.die("the end, where this process waits for the others,")
            pause()
            self.read_news()
        if self._finalize and not self.lost:
            self.inside("the end of MPI", self._end)
        self._over.set()
        if not self._finalize and self.lost:  # the program that started MPI would hang in its end
            Forgiving(sys.stdout).flush()
            Forgiving(sys.stderr).flush()
            os._exit(1 if hasattr(sys, "last_value") else 0)

    def _end(self) -> None:
        for request, _ in self._letters.values():
            request.Cancel()
            request.Wait()
        for request, _ in self._sending:
            request.Wait()
        self._news.Free()
        self.mpi.Finalize()
        self._over.set()  # before the lock is free again


_process: MpiProcess | None = None
_starting, _begun = Lock(), False


def progress() -> str:
    """Return how far this process is with joining the others: "" (not begun), "joining" or "joined"."""
    if not _starting.acquire(blocking=False):  # MPI may not be called while it starts
        return "joining"
    try:
        if _begun:
            return "joined" if _process is not None and _process.hosts else "joining"
        mpi = sys.modules.get("mpi4py.MPI")
        return "joined" if mpi is not None and mpi.Is_initialized() else ""
    finally:
        _starting.release()


def mpi_process() -> MpiProcess:
    """Return MPI of this process; the first call starts it."""
    global _process, _begun
    with _starting:
        _begun = True
        if _process is None:
            _process = MpiProcess()
        return _process
