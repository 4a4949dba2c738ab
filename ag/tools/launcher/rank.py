"""A rank of a launched job: runs a script as ``python script`` would, and calls the launcher until the script ends.

Without an answer for `SILENCE` seconds the rank ends itself, so the launcher's next job never meets it.  It imports the
standard library only, as what `ag` loads must not come before the script; mpiexec starts this file by its path.
"""

from __future__ import annotations

import errno
import hmac
import io
import json
import os
import runpy
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread, main_thread

LAUNCH = "AG_LAUNCH"  # the variable that says where the launcher is
BEAT = 0.5  # seconds between two calls
SILENCE = 15.0  # seconds without an answer after which a rank ends, and the launcher takes it for ended
GO_ON, LEAVE, END = b".", b"l", b"e"  # answers
JOINING, JOINED = "joining", "joined"  # progress of a rank that calls; at first neither
NONCE = PROOF = 32  # bytes
_FIND = 30.0  # seconds to find the launcher


def proof(secret: str, side: bytes, theirs: bytes, mine: bytes) -> bytes:
    """Return what shows that a side, b"rank" or b"launcher", has the secret; nonces make it worthless to replay."""
    return hmac.digest(secret.encode(), side + theirs + mine, "sha256")


class _Line:
    def __init__(self, addresses: list[str], port: int, secret: str) -> None:
        number = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
        self._name = f"rank {number} on {socket.gethostname()}"
        self._socket = self._find(addresses, port, secret)
        os.register_at_fork(after_in_child=self._socket.close)  # a child that lives on would hide the rank's end
        self._lock, self._told = Lock(), 0  # how often the launcher has asked this rank to leave
        self._say({"rank": int(number), "pid": os.getpid(), "host": socket.gethostname()})
        Thread(target=self._keep, name="ag-launcher", daemon=True).start()

    def _find(self, addresses: list[str], port: int, secret: str) -> socket.socket:
        end = time.monotonic() + _FIND
        while time.monotonic() < end:
            for address in addresses:
                with suppress(OSError):
                    found = socket.create_connection((address, port), SILENCE / len(addresses))
                    if _proves(found, secret, time.monotonic() + SILENCE / len(addresses)):
                        found.settimeout(SILENCE)
                        return found
            time.sleep(0.2)
        raise SystemExit(f"ag launch: {self._name} does not reach its launcher at {', '.join(addresses)}, port {port}; "
                         f"hosts must be able to connect to the one that launches.")

    def _say(self, message: dict[str, object]) -> None:
        text = json.dumps(message, ensure_ascii=False)  # escapes would make a long message too long
        with self._lock:
            self._socket.sendall(text.encode("utf-8", "replace") + b"\n")

    def _keep(self) -> None:
        while True:
            answer = b""
            with suppress(OSError):
                call = _progress().encode() + b"\n"
                with self._lock:
                    self._socket.sendall(call)
                answer = self._socket.recv(1)
            if answer == LEAVE:
                # SIGTERM interrupts a call that waits in C, but not one that begins to wait just afterwards.  SIGURG
                # ends that wait, and Python then runs the handler of SIGTERM.
                self._told += 1
                if self._told == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                elif self._told == 2:
                    signal.pthread_kill(main_thread().ident or 0, signal.SIGURG)
            elif answer in (END, b""):
                with suppress(OSError):
                    if not answer:
                        os.write(2, f"ag launch: {self._name} has lost its launcher, and ends by SIGKILL.\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(BEAT)

    def tell(self, outcome: str, code: int = 0, text: str = "") -> None:
        """Report how the script has ended."""
        with suppress(OSError):
            self._say({"outcome": outcome, "code": code, "text": text[:1000], "progress": _progress()})


def _proves(connection: socket.socket, secret: str, end: float) -> bool:
    """Exchange proofs of the secret; hang up and return False where the other side does not have it."""
    theirs, mine = _receive(connection, NONCE, end), os.urandom(NONCE)
    with suppress(OSError):
        connection.sendall(mine + proof(secret, b"rank", theirs, mine))
        if hmac.compare_digest(_receive(connection, PROOF, end), proof(secret, b"launcher", theirs, mine)):
            return True
    connection.close()
    return False


def _receive(connection: socket.socket, count: int, end: float) -> bytes:
    """Return that many bytes, or fewer where the other side hangs up or is too slow."""
    received = b""
    with suppress(OSError):
        while len(received) < count:
            connection.settimeout(max(end - time.monotonic(), 0.001))
            if not (more := connection.recv(count - len(received))):
                break
            received += more
    return received


def _progress() -> str:
    """Return "" (not begun), `JOINING` or `JOINED`; until all ranks have joined, none can go on without a lost one."""
    ours = getattr(sys.modules.get("ag.parallel.comm.mpi_process"), "progress", None)
    if ours is not None:
        return str(ours())
    started = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", bool)  # the script's own MPI
    return JOINED if started() else ""


def unread() -> list[int]:
    """Return which of stdout (1) and stderr (2) have lost their reader."""
    ends = select.poll()
    for number in (1, 2):
        ends.register(number, 0)
    return [number for number, event in ends.poll(0) if event & (select.POLLERR | select.POLLHUP)]


def _drop_unread_output() -> None:
    """Let Python's stdout and stderr drop what has no reader any more."""
    # Open MPI closes its ends a moment before it ends a job that has lost a host; a print in that moment must not fail.
    # All of Python writes through the lowest layer of a stream, so that layer alone is changed.
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
    """Return "lost" if a rank, a device or the whole job was lost, so that the job may go on; else "failed"."""
    errors = sys.modules.get("ag.errors")
    losses = (errors.RankLostError, errors.DeviceError) if errors is not None else ()
    while error is not None:
        if isinstance(error, losses):
            return "lost"
        error = error.__cause__ or error.__context__
    return "lost" if unread() else "failed"  # output without a reader: the job is being ended


def _refused(folder: str) -> str:
    """Make a folder that only this user can use; return why the one that is there cannot be trusted, or ""."""
    with suppress(OSError):
        os.mkdir(folder, 0o700)
    try:
        found = os.lstat(folder)
    except OSError:  # this host lacks the launching host's place for temporary files
        return ""
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is a link, or no folder"
    elif found.st_uid != os.geteuid():
        wrong = f"belongs to user {found.st_uid}"
    elif found.st_mode & 0o077:
        wrong = f"is open to others (mode {stat.S_IMODE(found.st_mode):o})"
    else:
        return ""
    return f"{folder} on {socket.gethostname()} {wrong}; remove it, or set TMPDIR to another place."


def main() -> None:
    """Run the script that is the first argument; the others are its own."""
    where = json.loads(os.environ[LAUNCH])
    refused = next(filter(None, map(_refused, where["folders"])), "")
    if os.path.isdir(where["folders"][0]):
        os.environ["TMPDIR"] = where["folders"][0]  # what a killed rank leaves there is swept
    else:
        os.environ.pop("TMPDIR", None)  # the launching host's
    if refused:
        with suppress(OSError):
            os.write(2, f"ag launch: {refused}\n".encode("utf-8", "backslashreplace"))
    _drop_unread_output()
    signal.signal(signal.SIGURG, lambda *_: None)  # ignored by default, and then it would end no wait
    line = _Line(where["addresses"], where["port"], where["secret"])
    if refused:
        line.tell("failed", 1, refused)
        raise SystemExit(1)
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
