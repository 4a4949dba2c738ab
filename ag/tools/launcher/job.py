"""A job: one mpiexec and its ranks, which call, from its start until nothing of it is left on this host.

A job ends when all ranks have hung up or are silent.  The end of mpiexec does not count.  It waits for stopped ranks,
and its status is 0 after a host has crashed.  A job that loses a rank before all have joined each other is ended, as
the others would wait for ever.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from hmac import compare_digest
from math import inf
from pathlib import Path
from secrets import token_bytes, token_hex
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple

from ag.parallel.comm.mpi_settings import launcher_environment, mpiexec_arguments
from ag.tools.launcher import rank as runner
from ag.tools.launcher.hosts import Host, addresses_for, is_here, ranks_with_processes
from ag.tools.launcher.rank import END, GO_ON, JOINED, JOINING, LAUNCH, LEAVE, NONCE, PROOF, SILENCE, proof
from ag.tools.launcher.sweep import dies_of, folders_of, processes_of

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
    """Listens for the ranks of a job.

    A rank that is silent for `SILENCE` does not come back.  A rank in a long call of C is silent, too.  So ranks that
    the system shows running are waited for, and all ranks while none has hung up.  A connection is a stranger's until
    it has proved the secret, and until then only the proof's bytes are read.
    """

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


# ---------------------------------------------------------------------------------------------- a job


_START = 120.0  # seconds for all ranks to be there
_FAILED = 60.0  # seconds for the others to end when the script of one has failed
_LOOK = 0.1  # seconds between two looks at signals and mpiexec
_GOING = 5.0  # seconds for mpiexec to end, by itself or when it is told to
_ENDED = 1.0  # the same, where ranks were ended or all were on this host: then it may hang, and is killed
_JOINS = 3.0  # seconds for ranks to join each other, after one was lost or all were asked to leave
_DEAF = 2.0  # seconds of silence after which a signal says what a rank on this host does not hear
_ABSENT = 1.0, 3.0  # seconds between two looks for ranks that have not called, on this host, and where there are others

# What other hosts' ranks get of this one's environment, by the beginning of a variable's name.
_EXPORTED = ("AG_", "LD_LIBRARY_PATH", "MKL_", "OMP_", "OPENBLAS_", "PATH", "PYTHON", "VK_")


class Job:
    """A job that runs `command`, a script and its arguments; without hosts all its ranks are on this one."""

    def __init__(self, name: str, mpiexec: str, command: Sequence[str], ranks: int, hosts: Sequence[Host]) -> None:
        self._name, self._size, self._hosts = name, ranks, hosts
        self._loss = self._deserted = ""  # of `Contacts`, before any rank was ended
        self._over = Event()
        self._others = others = any(not is_here(host) for host, _ in hosts)
        places = [name for name, count in hosts for _ in range(count)] or [socket.gethostname()] * ranks
        self.contacts = Contacts(ranks, others, places)
        folders = folders_of(name)
        where = {"job": name, "addresses": addresses_for(hosts) if others else ["127.0.0.1"],
                 "port": self.contacts.port, "secret": self.contacts.secret, "folders": folders}
        env = {**launcher_environment(), **os.environ, LAUNCH: json.dumps(where), "TMPDIR": folders[0],
               "OMPI_MCA_btl_sm_backing_directory": folders[-1], "PRTE_MCA_prte_tmpdir_base": folders[0],
               "PRTE_MCA_ag_job": name}  # which stands on the command lines of its daemons, too
        exported = [x for variable in sorted(env) if variable.startswith(_EXPORTED) for x in ("-x", variable)]
        line = [mpiexec, *mpiexec_arguments(ranks, hosts), *(exported if others else []),
                sys.executable, *["-O"] * sys.flags.optimize, str(Path(runner.__file__)), *command]
        self._mpiexec = subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        Thread(target=self._watch, name="ag-absent", daemon=True).start()

    def _watch(self) -> None:
        """Look for ranks that have lost their process before they called, until all have called."""
        known = set[int]()
        while not self._over.wait(_ABSENT[self._others]) and not self.contacts.come:
            there, called = ranks_with_processes(self._hosts, self._name), self.contacts.called
            if there is None or not called & there:  # nobody may have been started, or nobody can be seen
                known.clear()
                continue
            absent = {*range(self._size)} - there - called
            self.contacts.absent = absent & known  # twice: not between two of its programs
            known = absent

    def run(self, leaves: Callable[[], bool], ends: Callable[[], bool]) -> None:
        """Wait for the end of all ranks; the functions say if they should leave by themselves, or end at once."""
        contacts, start = self.contacts, monotonic() + _START
        failed = inf  # when other ranks must have ended, too
        apart = inf  # when ranks that seem unable to join each other must have, or that should leave before they do
        end = inf  # of the patience with ranks that should end at once
        while monotonic() < end:
            contacts.look(_LOOK)
            gone = self._mpiexec.poll() is not None
            if contacts.failed:
                failed = min(failed, monotonic() + _FAILED)
            ended = contacts.answer == END
            if not ended:
                self._loss, self._deserted = contacts.loss, contacts.deserted
                waits = self._loss or self._deserted or (contacts.answer == LEAVE and contacts.joining)
                apart = min(apart, monotonic() + _JOINS) if waits else inf
            late = ended or monotonic() > min(apart, failed if contacts.come else min(start, failed))
            if not contacts.there and (gone or contacts.come or late):
                return
            if gone or late or ends():  # mpiexec may leave ranks behind that do not know
                contacts.answer = END
                end = min(end, monotonic() + _GOING) if ends() else inf
            elif leaves():
                contacts.answer = LEAVE
            self._tell_the_deaf()

    def _tell_the_deaf(self) -> None:
        """Signal ranks of this host in which no Python runs: they do not hear the launcher."""
        number = {END: signal.SIGKILL, LEAVE: signal.SIGTERM}.get(self.contacts.answer)
        deaf = self.contacts.processes_here(_DEAF)
        if number is not None and deaf:
            for process in {*deaf} & {*processes_of(self._name)}:
                if number == signal.SIGKILL or dies_of(process, number):  # otherwise Python hears of it in time
                    with suppress(OSError):
                        os.kill(process, number)

    def verdict(self) -> Outcome:
        """Return how the job has ended."""
        found = verdict(self.contacts.outcomes())
        if self._deserted and found.kind == "done":
            return Outcome("failed", 1, f"{self._deserted} has come to the end of its script without joining the "
                                        f"others, which waited for it")
        if self._loss and found.kind != "failed":
            late = ", ".join(self.contacts.uncalled())
            return Outcome("lost", 1, f"{self._loss} was lost as the job started, before all ranks had joined each "
                                      f"other{f'; {late} had not called' if late else ''}")
        return found

    def close(self) -> None:
        """End mpiexec, which ends its daemons on other hosts, and with them ranks that are stopped."""
        self._over.set()
        patience = _ENDED if self.contacts.answer == END else _GOING  # while it still passes on what ranks have printed
        with suppress(subprocess.TimeoutExpired):
            self._mpiexec.wait(patience if self.contacts.over else 0.1)
        if self._mpiexec.poll() is None:
            self._mpiexec.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._mpiexec.wait(_GOING if self._others else _ENDED)
        with suppress(ProcessLookupError):
            os.killpg(self._mpiexec.pid, signal.SIGKILL)
        self._mpiexec.wait()
        self.contacts.close()
