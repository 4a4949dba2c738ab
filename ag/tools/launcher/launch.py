"""The launcher: `python -m ag launch` starts a script's ranks, and starts them again if they are lost.

Where ranks cannot go on by themselves, the hosts that answer start again from the last checkpoint, which the script
loads (``resume=True``).  A job that can grow saves, leaves, and is started on more hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from hmac import compare_digest
from importlib.util import find_spec
from math import inf
from pathlib import Path
from secrets import token_bytes, token_hex
from stat import S_ISCHR
from threading import Event, Thread
from time import monotonic, sleep
from types import FrameType
from typing import NamedTuple

from ag.parallel.comm.mpi_settings import find_mpiexec, launcher_environment, mpiexec_arguments, started_by_launcher
from ag.tools.launcher import rank as runner
from ag.tools.launcher.hosts import (
    Discovery,
    Host,
    addresses_for,
    answering,
    dies_of,
    folders_of,
    is_here,
    lock,
    parse_hosts,
    places,
    processes_of,
    ranks_with_processes,
    sweep,
    sweep_older,
)
from ag.tools.launcher.rank import END, GO_ON, JOINED, JOINING, LAUNCH, LEAVE, NONCE, PROOF, SILENCE, proof, unread
from ag.version import install_line

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

    def there(self, patience: float) -> bool:
        """Return whether it may still act, if it is silent for less than so many seconds."""
        silent = monotonic() - self.heard
        return not self.over and (silent < patience or (silent < _LONG and self._runs()))

    def _runs(self) -> bool:
        """Return whether it is seen to run on this host, and not stopped."""
        with suppress(OSError):
            state = Path(f"/proc/{self.process}/stat").read_text("utf-8", "replace").rpartition(") ")[2][:1]
            return self.host == socket.gethostname() and state in ("R", "S", "D")
        return False


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
        self.ranks: dict[int, _Rank] = {}  # those that have called
        self._strangers: dict[_Rank, None] = {}  # connections without a proof, the oldest first
        self._deaf_until = 0.0  # no connection is accepted before
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def look(self, seconds: float) -> None:
        """Listen for so long, or until a rank calls."""
        before = [rank for rank in self.ranks.values() if rank.outcome is not None]
        if self._server not in self._selector.get_map() and monotonic() >= self._deaf_until:
            self._selector.register(self._server, selectors.EVENT_READ)
        ready = [key.data for key, _ in self._selector.select(seconds)]
        for rank in filter(None, ready):
            self._hear(rank)
        for rank in [rank for rank in self._strangers if monotonic() - rank.heard > _PROVE]:
            self._hang_up(rank)
        if None in ready:  # the server
            self._accept()
        for rank in self.ranks.values() if self.loss else ():
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
        if not 0 <= number < self._size or number in self.ranks:
            return False
        rank.number, self.ranks[number] = number, rank
        return True

    @property
    def come(self) -> bool:
        """True once every rank has called."""
        return len(self.ranks) == self._size

    @property
    def there(self) -> bool:
        """True while a rank may still act."""
        ranks = self.ranks.values()
        patience = SILENCE + _GRACE if any(rank.over for rank in ranks) or self.answer == END else _LONG
        return any(rank.there(patience) for rank in ranks)

    @property
    def joining(self) -> bool:
        """True if a rank waits for others, or has not called at all."""
        return not self.come or any(rank.progress == JOINING and not rank.over for rank in self.ranks.values())

    @property
    def loss(self) -> str:
        """The ranks that were lost before all had joined each other, so that the others never will; or ""."""
        lost = {i for i, rank in self.ranks.items() if rank.over and rank.outcome is None}
        if all(rank.progress == JOINED for i, rank in self.ranks.items() if i not in lost):
            return ""  # they go on by themselves
        return self._named(lost | (self.absent - self.ranks.keys()))

    @property
    def deserted(self) -> str:
        """The ranks that have ended their scripts without joining those that wait for all; or ""."""
        ranks = self.ranks.items()
        waits = [i for i, rank in ranks if rank.progress == JOINING and not rank.over and rank.outcome is None]
        gone = [i for i, rank in ranks if rank.progress != JOINED and rank.outcome is not None]
        return self._named(gone) if waits else ""

    def processes_here(self, silent: float) -> list[int]:
        """Return the processes of ranks on this host that have not hung up and are silent for so many seconds."""
        return [rank.process for rank in self.ranks.values()
                if rank.host == socket.gethostname() and not rank.over and monotonic() - rank.heard > silent]

    @property
    def over(self) -> bool:
        """True once every rank has hung up, so that mpiexec will end by itself."""
        return self.come and all(rank.over for rank in self.ranks.values())

    def outcomes(self) -> list[Outcome | None]:
        """Return how every rank has ended, as far as it has said so."""
        return [self.ranks[i].outcome if i in self.ranks else None for i in range(self._size)]

    def uncalled(self) -> str:
        """Name the ranks that have not called, and are not known to be lost."""
        return self._named({*range(self._size)} - self.ranks.keys() - self.absent)

    def unsaid(self) -> str:
        """Name the ranks that have not said how they ended."""
        return self._named(i for i, outcome in enumerate(self.outcomes()) if outcome is None)

    def _named(self, numbers: Iterable[int]) -> str:
        where = {i: f"{rank.host}, process {rank.process}" for i, rank in self.ranks.items()}
        return ", ".join(f"rank {i} ({where.get(i) or (self._hosts[i] if self._hosts else '?')})"
                         for i in sorted(numbers))

    def close(self) -> None:
        self._selector.close()
        self._server.close()
        for rank in (*self.ranks.values(), *self._strangers):
            rank.connection.close()


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
    """One mpiexec and its ranks, from the start until nothing of it is left on this host; without hosts all are here.

    It ends when all ranks have hung up or are silent.  The end of mpiexec does not count: it waits for stopped ranks,
    and its status is 0 after a host has crashed.  A job that loses a rank before all have joined each other is ended.
    """

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
            there, called = ranks_with_processes(self._hosts, self._name), {*self.contacts.ranks}
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
            if any(outcome is not None and outcome.kind == "failed" for outcome in contacts.outcomes()):
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
            late = self.contacts.uncalled()
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


_AGAIN = 1.0  # seconds before a job is started again
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def launch(options: argparse.Namespace) -> int:
    """Run a job to its end and return the status of the command; raise ValueError if an argument is wrong.

    0: the script came to its end on the ranks that are left.  143: SIGTERM was received, here or by a rank, and the job
    has left.  1: the job was lost and cannot go on.  141: its output has no reader.  Or the script's own, if it failed.
    """
    ranks, least, restarts = options.ranks, options.min_ranks, options.max_restarts
    for name, value, smallest in (("-n", ranks, 1), ("--min-ranks", least, 0), ("--max-restarts", restarts, 0)):
        if value is not None and value < smallest:
            raise ValueError(f"launch: {name} is {value}; a whole number of at least {smallest} is required.")
    if ranks is None and not options.hosts and not options.discover:
        raise ValueError("launch: neither -n nor --hosts nor --discover is given; say how many ranks, such as -n 4.")
    if not os.path.isfile(options.script):
        raise ValueError(f"launch: there is no script {options.script}; name a Python file, after all options.")
    if started_by_launcher():
        raise ValueError("launch: this process is a rank itself; call launch without mpiexec or srun.")
    mpiexec = find_mpiexec()
    if mpiexec is None or find_spec("mpi4py") is None:
        raise ValueError(f"launch: mpi4py or mpiexec is missing; {install_line('mpi')} brings both.")
    hosts = parse_hosts([x.strip() for x in options.hosts.split(",")], "--hosts") if options.hosts else []
    most = places(hosts) or ranks
    if not options.discover and least > min(ranks or most, most):
        raise ValueError(f"launch: --min-ranks is {least}, and there are {min(ranks or most, most)} ranks; ask for "
                         f"fewer, or name more hosts.")
    if hosts and ranks and ranks > most:
        raise ValueError(f"launch: -n is {ranks}, and --hosts has room for {most}; ask for fewer ranks, or name more.")
    _open_streams()
    with _Signals() as signals, suppress(_AskedToEndError):
        return _Launcher(options, mpiexec, hosts, signals).run()
    return 128 + signals.first


class _AskedToEndError(Exception):
    """Raised by a signal where there is nothing to save."""


class _Signals:
    """Signals that ask the launcher to end: the first lets ranks save and leave, the second ends them."""

    def __init__(self) -> None:
        self.first = self.count = 0
        self._raises = False

    def __enter__(self) -> _Signals:
        heeded = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores some
        self._before = {number: signal.signal(number, self._take) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        self.count += 1
        if self._raises:
            raise _AskedToEndError

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise when a signal comes, instead of waiting: there is no job that could save."""
        self._raises = True
        try:
            if self.count:
                raise _AskedToEndError
            yield
        finally:
            self._raises = False


class _Launcher:
    """Jobs one after the other, until one of them comes to its end."""

    def __init__(self, options: argparse.Namespace, mpiexec: str, hosts: Sequence[Host], signals: _Signals) -> None:
        self._options, self._mpiexec, self._hosts, self._signals = options, mpiexec, [*hosts], signals
        self._command = [os.path.abspath(options.script), *options.arguments]
        self._name = ""  # of the last job
        self._last: list[Host] = []  # its hosts
        self._discovery: Discovery | None = None

    def run(self) -> int:
        for left in sweep_older():
            with self._signals.raised():
                answering([(name, 1) for name in left.hosts], left.job, left.folders)
        if self._options.discover:
            with self._signals.raised():
                self._discovery = Discovery(self._options.discover, _say)
        try:
            return self._jobs()
        finally:
            if self._discovery is not None:
                self._discovery.end()
            answering(self._last, self._name)

    def _jobs(self) -> int:
        failures = 0
        while True:
            chosen = self._choose()
            found, grows = self._job(*chosen) if chosen is not None and not self._signals.count else (
                Outcome("failed", 1), False)
            if found.kind == "done":
                return 0
            if self._signals.count:
                return 128 + self._signals.first
            if found.kind == "failed":
                return found.code
            if not all(S_ISCHR(os.fstat(number).st_mode) for number in unread()):
                # As after `| head`: mpiexec ends the job with the first line that it cannot write, and would end the
                # next one.  A closed terminal is none of this: mpiexec goes on, and SIGHUP says what is wanted.
                _say("nobody reads the output any more; launched again, the job goes on from its last checkpoint.")
                return 128 + signal.SIGPIPE
            if grows:
                continue
            if found.kind == "left":
                return 128 + signal.SIGTERM
            if failures == self._options.max_restarts:
                _say(f"the job was lost {failures + 1} times, and --max-restarts is {failures}; it goes on from its "
                     f"last checkpoint when it is launched again.")
                return 1
            failures += 1
            sleep(_AGAIN)

    def _choose(self) -> tuple[int, list[Host]] | None:
        """Return how many ranks to start, and where; None if the hosts that answer may not go on."""
        hosts = self._discovery.listed if self._discovery is not None else self._hosts
        if not hosts:
            return self._options.ranks, []
        with self._signals.raised():
            there, wrong = answering(hosts, self._name)
        for text in wrong:
            _say(f"a host does not answer: {text}")
        last, least = self._last or hosts, self._options.min_ranks
        left = sum(name in dict(there) for name, _ in last)
        ranks = min(self._options.ranks or places(there), places(there))
        if ranks < max(least, 1) or (2 * left <= len(last) and not least):
            _say(f"{left} of {len(last)} hosts answer, with room for {places(there)} ranks; more than half of the last "
                 f"job's hosts must, or --min-ranks allow it.")
            return None
        self._last = there
        return ranks, there

    def _job(self, ranks: int, hosts: list[Host]) -> tuple[Outcome, bool]:
        """Run a job; return how it ended, and whether it was asked to leave as there are more hosts."""
        where = ", ".join(f"{name}:{count}" for name, count in hosts) or "this host"
        _say(f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {where}.")
        more = self._discovery if ranks != self._options.ranks else None
        if more is not None:
            more.begin(hosts)
        grows = False

        def leaves() -> bool:
            nonlocal grows
            if more is not None and more.more and not grows:
                grows = True
                _say("there are more hosts; the job saves, leaves, and is started on all of them.")
            return grows or self._signals.count > 0

        self._name = token_hex(8)
        with lock(self._name, [name for name, _ in hosts]):
            job = Job(self._name, self._mpiexec, self._command, ranks, hosts)
            try:
                job.run(leaves, lambda: self._signals.count > 1)
                found, unsaid = job.verdict(), job.contacts.unsaid()
                began = bool(job.contacts.ranks)
            finally:
                job.close()
                sweep(self._name)
        if found.kind == "failed":
            _say(f"the script has failed ({found.text.rstrip('.') or f'status {found.code}'}), and would do so again.")
        elif found.kind == "left":
            _say("the ranks have left, as they were told to.")
        elif found.kind == "lost" and not grows and not self._signals.count:
            _say(f"the job was lost: {found.text.rstrip('.') or unsaid}{'' if began else ' did not begin'}.")
        elif found.kind == "done" and unsaid:
            _say(f"done; without {unsaid}, which were lost.")
        return found, grows


def _open_streams() -> None:
    """Open what is closed of stdin, stdout and stderr: a socket in its place would send what is written there."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)


def _say(text: str) -> None:
    with suppress(OSError):  # without a reader Python's own stderr would keep the text, and fail with it at the end
        os.write(2, f"ag launch: {text}\n".encode("utf-8", "backslashreplace"))
