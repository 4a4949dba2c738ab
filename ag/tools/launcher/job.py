"""A job: one mpiexec and its ranks, from its start until nothing of it is left on this host.

Its end is that all ranks have hung up, or are silent: not that mpiexec returns, which it does not while a rank is
stopped, and whose status is 0 after a host has crashed.  Knows mpiexec's command and the ranks' calls; not what becomes
of a job that was lost, which `ag.tools.launcher.launch` decides.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic

from ag.parallel.comm.mpi_settings import launcher_environment, mpiexec_arguments
from ag.tools.launcher import rank as runner
from ag.tools.launcher.contact import Contacts
from ag.tools.launcher.hosts import Host, addresses_for, is_here
from ag.tools.launcher.rank import END, LAUNCH, LEAVE
from ag.tools.launcher.sweep import folders_of

__all__ = ["Job"]

_START = 120.0  # seconds for all ranks to be there
_FAILED = 60.0  # seconds for the others to end when the script of one has failed
_LOOK = 0.1  # seconds between two looks at signals and mpiexec
_GOING = 5.0  # seconds for mpiexec to end, by itself or when it is told to

# What other hosts' ranks get of this one's environment, by the beginning of a variable's name.
_EXPORTED = ("AG_", "LD_LIBRARY_PATH", "MKL_", "OMP_", "OPENBLAS_", "PATH", "PYTHON", "VK_")


class Job:
    """A job that runs.

    Parameters
    ----------
    name : str
    mpiexec : str
        Its path.
    command : sequence of str
        The script and its arguments.
    ranks : int
    hosts : sequence of (str, int)
        None: all ranks on this one.
    """

    def __init__(self, name: str, mpiexec: str, command: Sequence[str], ranks: int, hosts: Sequence[Host]) -> None:
        self._size = ranks
        others = any(not is_here(host) for host, _ in hosts)
        self.contacts = Contacts(ranks, others)
        folders = folders_of(name)
        where = {"job": name, "addresses": addresses_for(hosts) if others else ["127.0.0.1"],
                 "port": self.contacts.port, "secret": self.contacts.secret, "folders": folders}
        env = {**launcher_environment(), **os.environ, LAUNCH: json.dumps(where), "TMPDIR": folders[0],
               "OMPI_MCA_btl_sm_backing_directory": folders[-1], "PRTE_MCA_prte_tmpdir_base": folders[0],
               "PRTE_MCA_ag_job": name}  # which stands on the command lines of its daemons, too
        exported = [x for variable in sorted(env) if variable.startswith(_EXPORTED) for x in ("-x", variable)]
        line = [mpiexec, *mpiexec_arguments(ranks, hosts), *(exported if others else []),
                sys.executable, str(Path(runner.__file__)), *command]
        self._mpiexec = subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, start_new_session=True)

    def run(self, leaves: Callable[[], bool], ends: Callable[[], bool]) -> None:
        """Wait for the end of all ranks.

        Parameters
        ----------
        leaves, ends : callable
            Whether ranks should leave by themselves, and whether they should end at once.
        """
        contacts, start = self.contacts, monotonic() + _START
        failed = inf  # when other ranks must have ended, too
        end = inf  # of the patience with ranks that should end at once
        while monotonic() < end:
            contacts.look(_LOOK)
            gone = self._mpiexec.poll() is not None
            if contacts.failed:
                failed = min(failed, monotonic() + _FAILED)
            late = monotonic() > (failed if contacts.come else min(start, failed))
            if not contacts.there and (gone or contacts.come or late):
                return
            if gone or late or ends():  # mpiexec may leave ranks behind that do not know
                contacts.answer = END
                end = min(end, monotonic() + _GOING) if ends() else inf
            elif leaves():
                contacts.answer = LEAVE

    def close(self) -> None:
        """End mpiexec, which ends its daemons on other hosts, and with them ranks that are stopped."""
        with suppress(subprocess.TimeoutExpired):
            self._mpiexec.wait(_GOING if self.contacts.over else 0.1)
        if self._mpiexec.poll() is None:
            self._mpiexec.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._mpiexec.wait(_GOING)
        with suppress(ProcessLookupError):
            os.killpg(self._mpiexec.pid, signal.SIGKILL)
        self._mpiexec.wait()
        self.contacts.close()
