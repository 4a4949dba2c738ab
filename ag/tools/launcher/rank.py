"""A rank of a launched job: runs a script as ``python script`` would, in touch with the launcher until it ends.

The rank calls the launcher twice a second and waits for its answer: go on, leave, or end.  So the launcher knows which
ranks are there and how their scripts have ended, wherever they run; and a rank whose launcher is gone, or cut off,
ends by itself within `SILENCE` seconds, so that the launcher's next job never meets it:

    rank       hello, rank 2 on b    call    call          call      done
    launcher                         go on   leave         go on

To leave means SIGTERM, of which `dp_train` makes a checkpoint and the status 143.

Knows a socket and a script.  Imports the standard library only, as what `ag` loads must not come before what the script
does first.  mpiexec starts it, by its path.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import socket
import sys
import time
from contextlib import suppress
from threading import Lock, Thread

__all__ = ["BEAT", "END", "GO_ON", "LAUNCH", "LEAVE", "SILENCE"]

LAUNCH = "AG_LAUNCH"  # the variable that says where the launcher is
BEAT = 0.5  # seconds between two calls
SILENCE = 15.0  # seconds without an answer after which a rank ends, and after which the launcher takes it for ended
GO_ON, LEAVE, END = b".", b"l", b"e"  # answers
_FIND = 30.0  # seconds to find the launcher


class _Line:
    """The connection to the launcher."""

    def __init__(self, addresses: list[str], port: int, secret: str) -> None:
        number = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
        self._name = f"rank {number} on {socket.gethostname()}"
        self._socket = self._find(addresses, port)
        self._lock, self._left = Lock(), False
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
                with self._lock:
                    self._socket.sendall(b"\n")
                answer = self._socket.recv(1)
            if answer == LEAVE and not self._left:
                self._left = True
                os.kill(os.getpid(), signal.SIGTERM)
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
            self._say({"outcome": outcome, "code": code, "text": text[:1000]})


def _follows_from_loss(error: BaseException | None) -> bool:
    """Whether a script failed as a rank, a device or mpiexec was lost, so the others, or the next job, may go on."""
    errors = sys.modules.get("ag.errors")
    losses = (errors.RankLostError, errors.DeviceError) if errors is not None else ()
    while error is not None:
        if isinstance(error, losses) or getattr(error, "errno", None) in (errno.EIO, errno.EPIPE):  # nobody reads it
            return True
        error = error.__cause__ or error.__context__
    return False


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
        line.tell("failed" if code else "done", code)
        raise
    except BaseException as error:
        line.tell("lost" if _follows_from_loss(error) else "failed", 1, f"{type(error).__name__}: {error}")
        raise
    line.tell("done")


if __name__ == "__main__":
    main()
