"""A rank of a launched job: runs a script as ``python script`` would, in touch with the launcher until it ends.

The rank calls the launcher twice a second and waits for its answer: go on, leave, or end.  So the launcher knows which
ranks are there and how their scripts have ended, wherever they run; and a rank whose launcher is gone, or cut off,
ends by itself within `SILENCE` seconds, so that the launcher's next job never meets it:

    rank       hello, rank 2 on b    call    call, joining    call, joined      done
    launcher                         go on   go on            leave

To leave means SIGTERM, of which `dp_train` makes a checkpoint and the status 143.  A call that waits in C hears a
signal that comes while it waits, and not one that came just before.  So a rank that is still there half a second later
gets SIGURG, which does nothing but end that wait, and Python takes up SIGTERM:

    thread that calls    SIGTERM to all                     SIGURG to the main thread
    main thread                    begins time.sleep(60)    wakes, runs the handler of SIGTERM, saves

Open MPI that ends a job, as a host has crashed, closes what it reads of the ranks a moment before it ends them.  A rank
that prints in that moment goes on: it would fail for something that is no fault of its script, all others with it.

    Open MPI    loses host c      closes the terminal of rank 0             ends rank 0
    rank 0      step 7            print("step 7"): dropped, no OSError      makes step 8, and is lost

Knows a socket, a script and its output.  Imports the standard library only, as what `ag` loads must not come before
what the script does first.  mpiexec starts it, by its path.
"""

from __future__ import annotations

import errno
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread, main_thread

__all__ = ["BEAT", "END", "GO_ON", "JOINED", "JOINING", "LAUNCH", "LEAVE", "SILENCE", "unread"]

LAUNCH = "AG_LAUNCH"  # the variable that says where the launcher is
BEAT = 0.5  # seconds between two calls
SILENCE = 15.0  # seconds without an answer after which a rank ends, and after which the launcher takes it for ended
GO_ON, LEAVE, END = b".", b"l", b"e"  # answers
JOINING, JOINED = "joining", "joined"  # how far a rank is that calls; at first neither
_FIND = 30.0  # seconds to find the launcher


class _Line:
    """The connection to the launcher."""

    def __init__(self, addresses: list[str], port: int, secret: str) -> None:
        number = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
        self._name = f"rank {number} on {socket.gethostname()}"
        self._socket = self._find(addresses, port)
        os.register_at_fork(after_in_child=self._socket.close)  # the rank's end is heard, whoever outlives it
        self._lock, self._told = Lock(), 0  # how often to leave
        self._say({"secret": secret, "rank": int(number), "pid": os.getpid(), "host": socket.gethostname()})
        Thread(target=self._keep, name="ag-launcher", daemon=True).start()

    def _find(self, addresses: list[str], port: int) -> socket.socket:
        end = time.monotonic() + _FIND
        while time.monotonic() < end:
            for address in addresses:
                with suppress(OSError):
                    return socket.create_connection((address, port), SILENCE / len(addresses))
            time.sleep(0.2)
        raise SystemExit(f"ag launch: {self._name} does not reach its launcher at {', '.join(addresses)}, port {port}; "
                         f"hosts must be able to connect to the one that launches.")

    def _say(self, message: dict[str, object]) -> None:
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _keep(self) -> None:
        self._socket.settimeout(SILENCE)
        while True:
            answer = b""
            with suppress(OSError):
                call = _progress().encode() + b"\n"
                with self._lock:
                    self._socket.sendall(call)
                answer = self._socket.recv(1)
            if answer == LEAVE:
                self._told += 1
                if self._told == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                elif self._told == 2:
                    signal.pthread_kill(main_thread().ident or 0, signal.SIGURG)
            elif answer in (END, b""):
                with suppress(OSError):
                    if not answer:
                        sys.stderr.write(f"ag launch: {self._name} has lost its launcher, and ends by SIGKILL.\n")
                        sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(BEAT)

    def tell(self, outcome: str, code: int = 0, text: str = "") -> None:
        """How the script has ended."""
        with suppress(OSError):
            self._say({"outcome": outcome, "code": code, "text": text[:1000], "progress": _progress()})


def _progress() -> str:
    """How far this process is with joining the others: "" (not begun), `JOINING` or `JOINED`.

    Until all have joined, nothing can be done without those that are lost.
    """
    ours = getattr(sys.modules.get("ag.parallel.comm.mpi_process"), "progress", None)
    if ours is not None:
        return str(ours())
    started = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", bool)  # an MPI of the script's own
    return JOINED if started() else ""


def unread() -> list[int]:
    """Which of this process' stdout (1) and stderr (2) nobody reads any more, as their other ends are closed."""
    ends = select.poll()
    for number in (1, 2):
        ends.register(number, 0)
    return [number for number, event in ends.poll(0) if event & (select.POLLERR | select.POLLHUP)]


def _drop_what_nobody_reads() -> None:
    """Let Python's stdout and stderr drop what cannot be written as nobody reads it.

    All of Python writes through the lowest of their layers: ``print``, ``logging``, ``sys.stdout.buffer`` and what is
    flushed at the end.  That layer alone is changed, so they stay the objects that Python has made, with their
    encoding and buffers.  C ignores such errors by itself (Python has seen to it that there is no SIGPIPE).
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            raw = getattr(stream.buffer, "raw", None)
            lowest = stream.buffer if raw is None else raw  # there are no buffers under ``python -u``
            lowest.write = _dropping(lowest.write)


def _dropping(write: Callable[[memoryview], int | None]) -> Callable[[memoryview], int | None]:
    def write_or_drop(data: memoryview) -> int | None:
        try:
            return write(data)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):  # of a terminal, of a pipe
                raise
            return memoryview(data).nbytes

    return write_or_drop


def _outcome(error: BaseException | None = None) -> str:
    """Whether a script has failed, or was lost with a rank, a device or the whole job, and may go on without them.

    What happens to a rank whose output nobody reads says nothing of its script, as the job is being ended.
    """
    errors = sys.modules.get("ag.errors")
    losses = (errors.RankLostError, errors.DeviceError) if errors is not None else ()
    while error is not None:
        if isinstance(error, losses):
            return "lost"
        error = error.__cause__ or error.__context__
    return "lost" if unread() else "failed"


def main() -> None:
    """Run the script that is the first argument; the others are its own."""
    where = json.loads(os.environ[LAUNCH])
    for folder in where["folders"]:
        with suppress(OSError):
            os.makedirs(folder, exist_ok=True)
    if os.path.isdir(where["folders"][0]):
        os.environ["TMPDIR"] = where["folders"][0]  # what a killed rank leaves there is swept
    else:
        os.environ.pop("TMPDIR", None)  # the launching host's
    _drop_what_nobody_reads()
    signal.signal(signal.SIGURG, lambda *_: None)  # or the system would ignore it, and no wait would end
    line = _Line(where["addresses"], where["port"], where["secret"])
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == 128 + signal.SIGTERM:
            line.tell("left")
            raise SystemExit(0) from None  # mpiexec would call it a failure
        line.tell(_outcome() if code else "done", code)
        raise
    except BaseException as error:
        line.tell(_outcome(error), 1, f"{type(error).__name__}: {error}")
        raise
    line.tell("done")


if __name__ == "__main__":
    main()
