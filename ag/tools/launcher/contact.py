"""Which ranks of a job are there: the launcher's end of their calls, which it answers: go on, leave or end.

Knows sockets and outcomes.  A `Job` asks it, and says what to answer.

    rank 0    called 0.1 s ago
    rank 1    called 0.3 s ago      done: its script has come to its end
    rank 2    called 16 s ago       silent: it has ended itself, or is stopped, or cut off
    rank 3    hung up               over: it was killed

A rank that is silent for longer than `SILENCE` does not come back: it ends when it has no answer for as long, or when
it is continued and finds its launcher gone.  Ranks whose Python does not run, as in one long call that reads data,
are silent, too: so one that can be seen to run is waited for, and while no rank has hung up, so are all.

Until all ranks have joined each other, none can go on without one that was lost, however long it waits:

    rank 0    called 0.2 s ago, joining              waits for all ranks, in the start of MPI
    rank 1    hung up                                over: it was killed as the job started
    rank 2    called 0.4 s ago                       slow: it still imports, and will join nobody
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import NamedTuple

from ag.tools.launcher.rank import END, GO_ON, JOINED, JOINING, SILENCE

__all__ = ["Contacts", "Outcome", "verdict"]

_MOST = 8192  # bytes of a message
_GRACE = 2.0  # seconds that a rank may take longer to end than it says
_LONG = 300.0  # seconds for a call in which Python does not run
_CALLS = (b"", JOINING.encode(), JOINED.encode())


class Outcome(NamedTuple):
    """How a rank's script has ended: done, left, lost (as a rank or a device was lost) or failed."""

    kind: str
    code: int = 0
    text: str = ""


def verdict(outcomes: Sequence[Outcome | None]) -> Outcome:
    """How a job has ended, from all its ranks; None stands for those that were killed, stopped or cut off.

    Examples
    --------
    Rank 1 was killed, the others have gone on without it and come to the end:

    >>> from ag.tools.launcher.contact import Outcome, verdict
    >>> verdict([Outcome("done"), None, Outcome("done")]).kind
    'done'
    >>> verdict([None, Outcome("lost", 1, "CommError: rank 1 alone may not go on")]).kind
    'lost'
    """
    kinds = ["failed", "left", "done", "lost"]
    if None in outcomes:  # mpiexec, too, tells ranks to leave, when it has lost a host
        kinds.remove("left")
    return next((outcome for kind in kinds for outcome in outcomes if outcome is not None and outcome.kind == kind),
                Outcome("lost"))


class _Rank:
    """A connection, and what is known of the rank at its other end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.number: int | None = None
        self.host, self.process = "?", 0
        self.heard = monotonic()
        self.progress = ""
        self.outcome: Outcome | None = None
        self.over = False
        self.buffer = b""

    @property
    def lost(self) -> bool:
        """Whether it has ended, and not said how."""
        return self.over and self.outcome is None

    def there(self, patience: float) -> bool:
        """Whether it may still do something, if it is silent for less than so many seconds."""
        silent = monotonic() - self.heard
        return not self.over and (silent < patience or (silent < _LONG and self._runs()))

    @property
    def here(self) -> bool:
        """Whether it is on this host."""
        return self.host == socket.gethostname()

    def _runs(self) -> bool:
        """Whether it is seen to run on this host, and not stopped."""
        if not self.here:
            return False
        try:
            state = Path(f"/proc/{self.process}/stat").read_text("utf-8", "replace").rpartition(") ")[2][:1]
        except OSError:
            return False
        return state in ("R", "S", "D")


class Contacts:
    """Listens for the ranks of a job.

    Parameters
    ----------
    size : int
        How many there will be.
    others : bool
        Whether some of them are on other hosts.
    hosts : sequence of str, optional
        On which host each of them should be, for messages.

    Attributes
    ----------
    port : int
    secret : str
        Ranks that say it are this job's.
    answer : bytes
        What ranks that call are told.
    absent : set of int
        Ranks that were lost before they called.
    """

    def __init__(self, size: int, others: bool, hosts: Sequence[str] = ()) -> None:
        self._size, self._hosts = size, hosts
        self._server = socket.create_server(("" if others else "127.0.0.1", 0))
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self.secret = token_hex(16)
        self.answer = GO_ON
        self.absent: set[int] = set()
        self._ranks: dict[int, _Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def look(self, seconds: float) -> None:
        """Listen for so long, or until a rank calls."""
        before = [rank for rank in self._ranks.values() if rank.outcome is not None]
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._server:
                with suppress(OSError):
                    connection, _ = self._server.accept()
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ, _Rank(connection))
            else:
                self._hear(key.data)
        for rank in self._ranks.values() if self.loss else ():
            if rank.outcome is not None and rank.outcome.kind == "failed" and rank.progress != JOINED and (
                    rank not in before):  # for want of the one that is lost: no fault of its script
                rank.outcome = rank.outcome._replace(kind="lost")

    def _hear(self, rank: _Rank) -> None:
        try:
            received = rank.connection.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        *lines, rank.buffer = (rank.buffer + received).split(b"\n")
        if not received or len(rank.buffer) > _MOST or not all(self._take(rank, line) for line in lines):
            rank.over = True
            self._selector.unregister(rank.connection)
            rank.connection.close()

    def _take(self, rank: _Rank, line: bytes) -> bool:
        """Take a line in; False if it is no rank's."""
        rank.heard = monotonic()
        if line in _CALLS and rank.number is not None:
            rank.progress = line.decode()
            with suppress(OSError):
                rank.connection.send(self.answer)
            return True
        try:
            message = json.loads(line)
            if rank.number is not None:
                rank.outcome = Outcome(str(message["outcome"]), int(message["code"]), str(message["text"]))
                rank.progress = str(message["progress"])
            elif compare_digest(str(message["secret"]), self.secret) and 0 <= int(message["rank"]) < self._size:
                rank.number, rank.host, rank.process = (int(message["rank"]), str(message["host"]),
                                                        int(message["pid"]))
                return self._ranks.setdefault(rank.number, rank) is rank
            else:
                return False
        except (ValueError, KeyError, TypeError):
            return False
        return True

    @property
    def called(self) -> set[int]:
        """The ranks that have called."""
        return set(self._ranks)

    @property
    def come(self) -> bool:
        """Whether every rank has called."""
        return len(self._ranks) == self._size

    @property
    def there(self) -> bool:
        """Whether a rank may still do something."""
        ranks = self._ranks.values()
        patience = SILENCE + _GRACE if any(rank.over for rank in ranks) or self.answer == END else _LONG
        return any(rank.there(patience) for rank in ranks)

    @property
    def joining(self) -> bool:
        """Whether a rank waits for others, or has not called at all."""
        return not self.come or any(rank.progress == JOINING and not rank.over for rank in self._ranks.values())

    @property
    def loss(self) -> str:
        """Who was lost before the others had joined each other, so that they never will; "" if nobody was."""
        lost = [i for i, rank in self._ranks.items() if rank.lost]
        if all(rank.progress == JOINED for rank in self._ranks.values() if not rank.lost):
            return ""  # they go on by themselves
        return ", ".join(map(self._named, sorted({*lost, *self.absent - self._ranks.keys()})))

    @property
    def deserted(self) -> str:
        """Who has come to the end of its script without joining those who wait for all; "" if nobody has."""
        ranks = self._ranks.items()
        waits = [i for i, rank in ranks if rank.progress == JOINING and not rank.over and rank.outcome is None]
        gone = [i for i, rank in ranks if rank.progress != JOINED and rank.outcome is not None]
        return ", ".join(map(self._named, sorted(gone))) if waits else ""

    def processes_here(self, silent: float) -> list[int]:
        """The processes of ranks on this host that have not hung up, and are silent for so many seconds."""
        return [rank.process for rank in self._ranks.values()
                if rank.here and not rank.over and monotonic() - rank.heard > silent]

    @property
    def over(self) -> bool:
        """Whether every rank has hung up, so that mpiexec will end by itself."""
        return self.come and all(rank.over for rank in self._ranks.values())

    @property
    def failed(self) -> bool:
        """Whether the script of a rank has failed."""
        return any(rank.outcome is not None and rank.outcome.kind == "failed" for rank in self._ranks.values())

    def outcomes(self) -> list[Outcome | None]:
        """How every rank has ended, as far as it has said so."""
        return [self._ranks[i].outcome if i in self._ranks else None for i in range(self._size)]

    def uncalled(self) -> list[str]:
        """The ranks that have not called, and are not known to be lost."""
        return [self._named(i) for i in range(self._size) if i not in self._ranks and i not in self.absent]

    def unsaid(self) -> list[str]:
        """The ranks that have not said how they ended."""
        return [self._named(i) for i, outcome in enumerate(self.outcomes()) if outcome is None]

    def _named(self, i: int) -> str:
        if i in self._ranks:
            return f"rank {i} ({self._ranks[i].host}, process {self._ranks[i].process})"
        return f"rank {i} ({self._hosts[i] if self._hosts else '?'})"

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        self._server.close()
        for rank in self._ranks.values():
            rank.connection.close()
