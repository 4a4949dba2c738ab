"""The launcher's end of its ranks' calls: which ranks are there, and how their scripts have ended.

A connection is a stranger's until it has proved the secret, and until then only the proof's bytes are read.  A rank
that is silent for `SILENCE` does not come back.  A rank in a long call of C is silent, too.  So ranks that the system
shows running are waited for, and all ranks while none has hung up.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from hmac import compare_digest
from pathlib import Path
from secrets import token_bytes, token_hex
from time import monotonic
from typing import NamedTuple

from ag.tools.launcher.rank import END, GO_ON, JOINED, JOINING, NONCE, PROOF, SILENCE, proof

_MOST = 8192  # bytes of a message
_GRACE = 2.0  # seconds that a rank may take longer to end than it says
_LONG = 300.0  # seconds for a call in which Python does not run
_PROVE = 10.0  # seconds for a stranger to prove the secret
_STRANGERS = 128  # connections without a proof at a time
_AT_ONCE = 32  # connections that are accepted before others are heard
_PAUSE = 0.2  # seconds without accepting after the files of the process have run out
_CALLS = (b"", JOINING.encode(), JOINED.encode())


class Outcome(NamedTuple):
    """The end of a rank's script: done, left, lost (as a rank or a device was lost) or failed."""

    kind: str
    code: int = 0
    text: str = ""


def verdict(outcomes: Sequence[Outcome | None]) -> Outcome:
    """Return how a job has ended, from all its ranks; None: the rank was killed, stopped or cut off."""
    kinds = ["failed", "left", "done", "lost"]
    if None in outcomes:  # mpiexec, too, tells ranks to leave, when it has lost a host
        kinds.remove("left")
    return next((outcome for kind in kinds for outcome in outcomes if outcome is not None and outcome.kind == kind),
                Outcome("lost"))


class _Rank:
    """A connection, and what is known of the rank at its other end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = token_bytes(NONCE)
        self.proved = False
        self.number: int | None = None
        self.host, self.process = "?", 0
        self.heard = monotonic()
        self.progress = ""
        self.outcome: Outcome | None = None
        self.over = False
        self.buffer = b""

    @property
    def lost(self) -> bool:
        """True if it has ended without saying how."""
        return self.over and self.outcome is None

    def there(self, patience: float) -> bool:
        """Return whether it may still act, if it is silent for less than so many seconds."""
        silent = monotonic() - self.heard
        return not self.over and (silent < patience or (silent < _LONG and self._runs()))

    @property
    def here(self) -> bool:
        """True if it is on this host."""
        return self.host == socket.gethostname()

    def _runs(self) -> bool:
        """Return whether it is seen to run on this host, and not stopped."""
        if not self.here:
            return False
        try:
            state = Path(f"/proc/{self.process}/stat").read_text("utf-8", "replace").rpartition(") ")[2][:1]
        except OSError:
            return False
        return state in ("R", "S", "D")


class Contacts:
    """Listens for the ranks of a job."""

    def __init__(self, size: int, others: bool, hosts: Sequence[str] = ()) -> None:
        self._size = size
        self._hosts = hosts  # of each rank, for messages
        self._server = socket.create_server(("" if others else "127.0.0.1", 0), backlog=1024)
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self.secret = token_hex(32)
        self.answer = GO_ON  # to ranks that call
        self.absent: set[int] = set()  # ranks that were lost before they called
        self._ranks: dict[int, _Rank] = {}
        self._strangers: dict[_Rank, None] = {}  # connections without a proof, the oldest first
        self._deaf_until = 0.0  # no connection is accepted before
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def look(self, seconds: float) -> None:
        """Listen for so long, or until a rank calls."""
        before = [rank for rank in self._ranks.values() if rank.outcome is not None]
        if self._server not in self._selector.get_map() and monotonic() >= self._deaf_until:
            self._selector.register(self._server, selectors.EVENT_READ)
        ready = [key.data for key, _ in self._selector.select(seconds)]
        for rank in filter(None, ready):
            self._hear(rank)
        for rank in [rank for rank in self._strangers if monotonic() - rank.heard > _PROVE]:
            self._hang_up(rank)
        if None in ready:  # the server
            self._accept()
        for rank in self._ranks.values() if self.loss else ():
            if rank.outcome is not None and rank.outcome.kind == "failed" and rank.progress != JOINED and (
                    rank not in before):  # for want of the one that is lost: no fault of its script
                rank.outcome = rank.outcome._replace(kind="lost")

    def _accept(self) -> None:
        """Welcome a few strangers; where there are too many, the oldest has to go."""
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                if error.errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    for rank in [*self._strangers]:  # a rank among them calls again
                        self._hang_up(rank)
                    self._selector.unregister(self._server)  # it stays ready, so `select` would spin
                    self._deaf_until = monotonic() + _PAUSE
                return
            connection.setblocking(False)
            rank = _Rank(connection)
            self._selector.register(connection, selectors.EVENT_READ, rank)
            self._strangers[rank] = None
            with suppress(OSError):  # `_hear` finds out
                connection.send(rank.nonce)
            if len(self._strangers) > _STRANGERS:
                self._hang_up(next(iter(self._strangers)))

    def _hear(self, rank: _Rank) -> None:
        try:
            received = rank.connection.recv(_MOST if rank.proved else NONCE + PROOF + 1 - len(rank.buffer))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        rank.buffer += received
        if not received or not (self._lines(rank) if rank.proved else self._proves(rank)):
            self._hang_up(rank)

    def _hang_up(self, rank: _Rank) -> None:
        rank.over = True
        self._strangers.pop(rank, None)
        self._selector.unregister(rank.connection)
        rank.connection.close()

    def _proves(self, rank: _Rank) -> bool:
        """Compare a stranger's proof once it is there, and answer it; False if it is wrong."""
        if len(rank.buffer) < NONCE + PROOF:
            return True
        theirs, given = rank.buffer[:NONCE], rank.buffer[NONCE:]
        if not compare_digest(given, proof(self.secret, b"rank", rank.nonce, theirs)):
            return False
        rank.proved, rank.buffer = True, b""
        del self._strangers[rank]
        with suppress(OSError):  # `_hear` finds out
            rank.connection.send(proof(self.secret, b"launcher", rank.nonce, theirs))
        return True

    def _lines(self, rank: _Rank) -> bool:
        """Take the lines that are there; False if one is no rank's."""
        *lines, rank.buffer = rank.buffer.split(b"\n")
        return len(rank.buffer) <= _MOST and all(self._take(rank, line) for line in lines)

    def _take(self, rank: _Rank, line: bytes) -> bool:
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
                return True
            number, rank.host, rank.process = int(message["rank"]), str(message["host"]), int(message["pid"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return False
        if not 0 <= number < self._size or number in self._ranks:
            return False
        rank.number, self._ranks[number] = number, rank
        return True

    @property
    def called(self) -> set[int]:
        """The ranks that have called."""
        return set(self._ranks)

    @property
    def come(self) -> bool:
        """True once every rank has called."""
        return len(self._ranks) == self._size

    @property
    def there(self) -> bool:
        """True while a rank may still act."""
        ranks = self._ranks.values()
        patience = SILENCE + _GRACE if any(rank.over for rank in ranks) or self.answer == END else _LONG
        return any(rank.there(patience) for rank in ranks)

    @property
    def joining(self) -> bool:
        """True if a rank waits for others, or has not called at all."""
        return not self.come or any(rank.progress == JOINING and not rank.over for rank in self._ranks.values())

    @property
    def loss(self) -> str:
        """The ranks that were lost before all had joined each other, so that the others never will; or ""."""
        lost = [i for i, rank in self._ranks.items() if rank.lost]
        if all(rank.progress == JOINED for rank in self._ranks.values() if not rank.lost):
            return ""  # they go on by themselves
        return ", ".join(map(self._named, sorted({*lost, *self.absent - self._ranks.keys()})))

    @property
    def deserted(self) -> str:
        """The ranks that have ended their scripts without joining those that wait for all; or ""."""
        ranks = self._ranks.items()
        waits = [i for i, rank in ranks if rank.progress == JOINING and not rank.over and rank.outcome is None]
        gone = [i for i, rank in ranks if rank.progress != JOINED and rank.outcome is not None]
        return ", ".join(map(self._named, sorted(gone))) if waits else ""

    def processes_here(self, silent: float) -> list[int]:
        """Return the processes of ranks on this host that have not hung up and are silent for so many seconds."""
        return [rank.process for rank in self._ranks.values()
                if rank.here and not rank.over and monotonic() - rank.heard > silent]

    @property
    def over(self) -> bool:
        """True once every rank has hung up, so that mpiexec will end by itself."""
        return self.come and all(rank.over for rank in self._ranks.values())

    @property
    def failed(self) -> bool:
        """True if the script of a rank has failed."""
        return any(rank.outcome is not None and rank.outcome.kind == "failed" for rank in self._ranks.values())

    def outcomes(self) -> list[Outcome | None]:
        """Return how every rank has ended, as far as it has said so."""
        return [self._ranks[i].outcome if i in self._ranks else None for i in range(self._size)]

    def uncalled(self) -> list[str]:
        """Name the ranks that have not called, and are not known to be lost."""
        return [self._named(i) for i in range(self._size) if i not in self._ranks and i not in self.absent]

    def unsaid(self) -> list[str]:
        """Name the ranks that have not said how they ended."""
        return [self._named(i) for i, outcome in enumerate(self.outcomes()) if outcome is None]

    def _named(self, i: int) -> str:
        if i in self._ranks:
            return f"rank {i} ({self._ranks[i].host}, process {self._ranks[i].process})"
        return f"rank {i} ({self._hosts[i] if self._hosts else '?'})"

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        self._server.close()
        for rank in (*self._ranks.values(), *self._strangers):
            rank.connection.close()
