"""A job: one mpiexec and its ranks, from its start until nothing of it is left on this host.

A job ends when all ranks have hung up or are silent.  The end of mpiexec does not count.  It waits for stopped ranks,
and its status is 0 after a host has crashed.  A job that loses a rank before all have joined each other is ended, as
the others would wait for ever.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from ag.parallel.comm.mpi_settings import launcher_environment, mpiexec_arguments
from ag.tools.launcher import rank as runner
from ag.tools.launcher.contact import Contacts, Outcome, verdict
from ag.tools.launcher.hosts import Host, addresses_for, is_here, ranks_with_processes
from ag.tools.launcher.rank import END, LAUNCH, LEAVE
from ag.tools.launcher.sweep import dies_of, folders_of, processes_of

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
