"""Settings of Open MPI by which ranks outlive each other: the environment, and mpiexec's arguments.

Each was found by experiment; without it a job hangs, loses a rank that only computes, or is slow.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"  # mpiexec --with-ft ulfm tells ranks so
DETECTOR = 10.0  # seconds after which a rank that does not answer is lost

# Of Open MPI, of MPICH and Intel MPI, and of Slurm's and other PMIx launchers: a rank has one of them.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def rank_environment(detector: float = DETECTOR) -> dict[str, str]:
    """Return the environment of a rank's MPI; a rank that does not answer for `detector` seconds is lost."""
    if not detector > 0:
        raise ValueError(f"rank_environment: detector is {detector}; a positive number of seconds is required.")
    return {
        # Off by default: a stopped rank or a cut link is then never noticed.
        "OMPI_MCA_mpi_ft_detector": "1",
        "OMPI_MCA_mpi_ft_detector_period": f"{min(0.5, detector / 4):g}",
        "OMPI_MCA_mpi_ft_detector_timeout": f"{detector:g}",
        # The detector's own thread loses ranks at the start and hangs at the end; ours calls MPI instead.
        "OMPI_MCA_mpi_ft_detector_thread": "0",
        # Survivors of a cut link hang in Agree without.
        "OMPI_MCA_mpi_ft_propagator_with_rbcast": "1",
        "OMPI_MCA_coll_ftagree_agreement": "1",
        # `han` can report success with a buffer that was not filled, in the step in which a rank ends.
        "OMPI_MCA_coll": "^han,hcoll,portals4",
        "OMPI_MCA_btl": "^ofi",  # a second to start, otherwise
        "OMPI_MCA_mpi_yield_when_idle": "1",  # where there are more ranks than cores
    }


def launcher_environment(detector: float = DETECTOR) -> dict[str, str]:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {
        **rank_environment(detector),
        "PRTE_MCA_oob_tcp_keepalive_time": "0",  # the runtime ends what survived, minutes after a host was lost
        **(root if hasattr(os, "geteuid") and os.geteuid() == 0 else {}),
    }


def mpiexec_arguments(ranks: int, hosts: Sequence[tuple[str, int]] = ()) -> list[str]:
    """Return the arguments of Open MPI's mpiexec before the program; `hosts` has names and numbers of places."""
    places = sum(count for _, count in hosts)
    if ranks < 1 or (hosts and (places < ranks or min(count for _, count in hosts) < 1)):
        raise ValueError(f"mpiexec_arguments: {ranks} ranks on {places if hosts else 'any number of'} places; at least "
                         f"one rank, and a place for each, are required.")
    # Without --with-ft mpiexec ends the job with the first rank.  A rank that is bound to one core cannot use threads.
    # Rank 0 would wait for ever for a stdin that has ended.
    arguments = ["-n", str(ranks), "--with-ft", "ulfm", "--stdin", "none", "--bind-to", "none", "--map-by",
                 "slot:OVERSUBSCRIBE"]
    return [*arguments, "--host", ",".join(f"{name}:{count}" for name, count in hosts)] if hosts else arguments


def find_mpiexec() -> str | None:
    """Return the path of mpiexec: the one that pip has installed, or the first on the path."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))


def started_by_launcher(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether this process was started as a rank: by mpiexec, or by a launcher that speaks PMI or PMIx."""
    variables = os.environ if environ is None else environ
    return any(name in variables for name in RANK_VARIABLES)
