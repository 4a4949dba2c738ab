"""Run programs in processes of their own that start in a hundredth of a second.

They are forks of a server that has imported `ag`, with warnings as errors, and used none of it.  A program whose
environment says what is read before that, such as a variable of OpenBLAS, gets an interpreter of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType

ROOT = Path(__file__).parents[2]
spent_s = [0.0]  # processor time of the programs
EARLY = ("OPENBLAS", "OMP_", "PYTHON", "LD_", "LC_", "LANG")  # beginnings of the names of such variables


@cache
def server() -> socket.socket:
    """Start the server of this process; it ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-W", "error", __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def run(code: str, *, folder: Path | None = None, environment: dict[str, str] | None = None,
        limit_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a program as ``python -W error -c code`` does: its exit status and what it printed."""
    added = environment or {}
    full = {**os.environ, **added}
    if not hasattr(os, "fork") or any(name.startswith(EARLY) for name in added):
        return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, env=full, capture_output=True,
                              text=True, timeout=limit_s, check=False)
    asked, answers = socket.socketpair()
    with asked, TemporaryFile() as out, TemporaryFile() as err, asked.makefile("rw") as channel:
        with answers:
            socket.send_fds(server(), [b"."], [answers.fileno(), out.fileno(), err.fileno()])
        print(json.dumps([code, str(folder or Path.cwd()), full]), file=channel, flush=True)
        pid = int(channel.readline())
        asked.settimeout(limit_s)
        try:
            status, seconds = asked.recv(64).split()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(code, limit_s) from None
        spent_s[0] += float(seconds)
        texts = [file.seek(0) or file.read().decode() for file in (out, err)]
    return subprocess.CompletedProcess([sys.executable, "-c", code], int(status), *texts)


def fork() -> int:
    """Fork, though a library such as OpenBLAS has a thread, of which newer Pythons warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def serve(control: socket.socket) -> str:
    """Fork for every request, in the server; return the program, in a process that is to run it."""
    answering: set[int] = set()
    while True:
        _, fds, _, _ = socket.recv_fds(control, 1, 3)
        answering -= {pid for pid in answering if os.waitpid(pid, os.WNOHANG)[0]}
        if not fds:
            os._exit(0)
        if pid := fork():
            answering.add(pid)
            for fd in fds:
                os.close(fd)
            continue
        control.close()
        if (code := answer(*fds)) is not None:
            return code


def answer(channel_fd: int, out: int, err: int) -> str | None:
    """Read a request and fork once more: the program in the child; the parent says how that ended, and ends."""
    channel = socket.socket(fileno=channel_fd)
    with channel.makefile("rw") as lines:
        code, folder, environment = json.loads(lines.readline())
        if pid := fork():
            print(pid, file=lines, flush=True)
            _, status, used = os.wait4(pid, 0)
            with suppress(BrokenPipeError):  # of a program that took too long
                channel.send(b"%d %f" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))
            os._exit(0)
    channel.close()
    for fd, number in ((out, 1), (err, 2)):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return str(code)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    import ag  # noqa: F401

    gc.collect()
    gc.freeze()
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = ["-c"]
    sys.path[0] = ""
    sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))
