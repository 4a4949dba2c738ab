"""Three hosts on one machine, for the tests: network namespaces with names and processes of their own, on a bridge.

Each runs a daemon that stands for ssh's: ``python three_hosts.py serve`` runs the commands that
``python three_hosts.py HOST COMMAND`` sends to it over the network, so a host that is cut off does not answer.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_PORT = 2222
_HOSTS = (1, 2, 3)
_numbers = count()


def why_not() -> str:
    """Why hosts cannot be made here; "" if they can."""
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is missing; Debian's packages iproute2 and util-linux have ip and unshare"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "--uts", "--pid", "--fork", "true"], capture_output=True, text=True,
                           check=False)
    return f"this machine lets nobody make namespaces ({tried.stderr.strip()})" if tried.returncode else ""


class Hosts:
    """Hosts 1 to 3, with the addresses 10.77.0.1 to 3."""

    def __init__(self) -> None:
        self._name = f"ag{os.getpid()}x{next(_numbers)}"  # with what follows 15 letters at most
        self.names = [f"10.77.0.{i}" for i in _HOSTS]
        self._daemons: dict[int, subprocess.Popen[bytes]] = {}

    def make(self) -> None:
        _ip("link", "add", f"{self._name}b", "type", "bridge")
        _ip("link", "set", f"{self._name}b", "up")
        for i in _HOSTS:
            space, link = f"{self._name}n{i}", f"{self._name}v{i}"
            _ip("netns", "add", space)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", link, "master", f"{self._name}b", "up")
            _ip("-n", space, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", space, "link", "set", device, "up")
            self.start(i)

    def on(self, i: int) -> list[str]:
        """Return the words to write before a command that should run on a host."""
        return ["ip", "netns", "exec", f"{self._name}n{i}", "unshare", "--uts", "--pid", "--fork", "--mount-proc",
                "--kill-child", "sh", "-c", f'hostname {self._name}h{i}; exec "$@"', "sh"]

    def start(self, i: int) -> None:
        """Start the daemon of a host."""
        self._daemons[i] = subprocess.Popen([*self.on(i), sys.executable, __file__, "serve"], start_new_session=True)
        end = time.monotonic() + 30
        while subprocess.run([*self.on(1), sys.executable, __file__, f"10.77.0.{i}", "true"], check=False).returncode:
            assert time.monotonic() < end, f"host {i} does not answer"
            time.sleep(0.2)

    def crash(self, i: int) -> None:
        """Kill all processes of a host that its daemon has started, and the daemon."""
        self._daemons[i].kill()
        self._daemons[i].wait()

    def cut(self, i: int) -> None:
        """Nothing reaches the host any more, and nobody is told."""
        _ip("link", "set", f"{self._name}v{i}", "down")

    def heal(self, i: int) -> None:
        _ip("link", "set", f"{self._name}v{i}", "up")

    def remove(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        for i in _HOSTS:
            with suppress(subprocess.CalledProcessError):
                _ip("link", "del", f"{self._name}v{i}")
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", f"{self._name}n{i}")
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self._name}b")


@contextmanager
def three_hosts() -> Iterator[Hosts]:
    """Hosts of their own for each caller."""
    hosts = Hosts()
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def agent() -> dict[str, str]:
    """Return the variable that tells mpiexec and the launcher how to run commands on the hosts."""
    return {"PRTE_MCA_plm_ssh_agent": f"{sys.executable} {Path(__file__)}"}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _serve() -> None:
    server = socket.create_server(("", _PORT))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = server.accept()
        command = b""
        while not command.endswith(b"\0"):
            command += connection.recv(1)
        subprocess.Popen(["sh", "-c", command[:-1].decode()], stdin=connection, stdout=connection, stderr=connection,
                         start_new_session=True)
        connection.close()


def _call(host: str, command: str) -> int:
    try:
        connection = socket.create_connection((host, _PORT), 5)
    except OSError as error:
        print(f"{host}: {error}", file=sys.stderr)
        return 255
    connection.settimeout(None)
    connection.sendall(command.encode() + b"\0")

    def send() -> None:
        with suppress(OSError):
            while data := os.read(0, 65536):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    with suppress(OSError):
        while data := connection.recv(65536):
            os.write(1, data)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve()
    words = [word for word in sys.argv[1:] if not word.startswith("-")]  # ssh's options mean nothing here
    sys.exit(_call(words[0], " ".join(sys.argv[sys.argv.index(words[0]) + 1 :])))
