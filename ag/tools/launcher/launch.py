"""The launcher: `python -m ag launch` starts a script's ranks, and starts them again if they are lost.

The ranks that are left go on by themselves where they can.  Where a host and mpiexec are lost, the hosts that answer
start again from the last checkpoint, which the script loads (``resume=True``).  A job that can grow saves, leaves, and
is started on more hosts.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from secrets import token_hex
from stat import S_ISCHR
from types import FrameType

from ag.parallel.comm.mpi_settings import find_mpiexec, started_by_launcher
from ag.tools.launcher.hosts import Discovery, Host, answering, discover, parse_hosts, places
from ag.tools.launcher.job import Job, Outcome
from ag.tools.launcher.rank import unread
from ag.tools.launcher.sweep import lock, sweep, sweep_older
from ag.version import install_line

_PAUSE = 1.0  # seconds before a job is started again
_ENDED = Outcome("failed", 1)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def launch(options: argparse.Namespace) -> int:
    """Run a job to its end and return the status of the command, or raise ValueError if an argument is wrong.

    0: the script came to its end on the ranks that are left.  143: SIGTERM was received, here or by a rank, and the job
    has left.  The script's own status if it failed.  1: the job was lost and cannot go on.  141: it was lost because
    its output has no reader.
    """
    ranks, least, restarts = options.ranks, options.min_ranks, options.max_restarts
    for name, value, smallest in (("-n", ranks, 1), ("--min-ranks", least, 0), ("--max-restarts", restarts, 0)):
        if value is not None and value < smallest:
            raise ValueError(f"launch: {name} is {value}; a whole number of at least {smallest} is required.")
    if ranks is None and not options.hosts and not options.discover:
        raise ValueError("launch: neither -n nor --hosts nor --discover is given; say how many ranks to start, such as "
                         "-n 4.")
    if not os.path.isfile(options.script):
        raise ValueError(f"launch: there is no script {options.script}; name a Python file, after all options.")
    if started_by_launcher():
        raise ValueError("launch: this process is a rank itself; call launch without mpiexec or srun.")
    mpiexec = find_mpiexec()
    if mpiexec is None or find_spec("mpi4py") is None:
        raise ValueError(f"launch: mpi4py or mpiexec is missing; {install_line('mpi')} brings both.")
    _open_streams()
    with _Signals() as signals, suppress(_AskedToEndError):
        return _Launcher(options, mpiexec, _hosts(options, signals), signals).run()
    return 128 + signals.first


def _hosts(options: argparse.Namespace, signals: _Signals) -> list[Host]:
    """Return the hosts that are named, or raise ValueError."""
    ranks, least = options.ranks, options.min_ranks
    hosts = parse_hosts([x.strip() for x in options.hosts.split(",")], "--hosts") if options.hosts else []
    with signals.raised():
        discovered = discover(options.discover) if options.discover else []
    most = places(hosts or discovered) or ranks
    if least > min(ranks or most, most) and not options.discover:
        raise ValueError(f"launch: --min-ranks is {least}, and there are {min(ranks or most, most)} ranks; ask for "
                         f"fewer, or name more hosts.")
    if hosts and ranks and ranks > most:
        raise ValueError(f"launch: -n is {ranks}, and --hosts has room for {most}; ask for fewer ranks, or name more.")
    return hosts


class _AskedToEndError(Exception):
    """Raised by a signal that comes where there is nothing to save."""


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
            found, grows = self._job(*chosen) if chosen is not None and not self._signals.count else (_ENDED, False)
            if found.kind == "done":
                return 0
            if self._signals.count:
                return 128 + self._signals.first
            if found.kind == "failed":
                return found.code
            if not all(S_ISCHR(os.fstat(number).st_mode) for number in unread()):
                # As after `| head`: mpiexec ends the job with the first line that it cannot write, and would end the
                # next one.  A closed terminal is none of this: mpiexec goes on, and SIGHUP says what is wanted.
                _say("nobody reads the output any more; the job goes on from its last checkpoint when it is launched "
                     "again.")
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
            time.sleep(_PAUSE)

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
                found, unsaid = job.verdict(), ", ".join(job.contacts.unsaid())
                began = bool(job.contacts.called)
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
