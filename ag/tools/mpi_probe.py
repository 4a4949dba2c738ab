"""Look for an MPI, its launcher, and whether it goes on without lost ranks.

Programs that come with MPI are asked in processes of their own, so that MPI is not loaded here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from ag.parallel.comm.mpi_settings import find_mpiexec, rank_environment
from ag.version import install_line

_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
_TIMES = ("period", "timeout")  # settings with these at the end may have other values


def mpi_report() -> tuple[str, list[str]]:
    """Return a line about the MPI, "" if there is none, and sentences about what is missing or set wrongly."""
    binding = version_of("mpi4py")
    if binding is None:
        return "", [f"mpi4py is not installed, so processes cannot train together; to get it: {install_line('mpi')}"]
    library = _output(sys.executable, "-c", _LIBRARY).partition(",")[0].partition("\n")[0].strip()
    if not library:
        return "", [f"mpi4py {binding} finds no MPI library, so processes cannot train together; to get one: "
                    f"{install_line('mpi')}, or load the site's own"]
    parts, missing = [f"{library} (mpi4py {binding})"], list[str]()
    launcher = find_mpiexec()
    if launcher is None:
        missing.append("mpiexec is not on the path, so processes are started by the site's launcher only, such as srun")
    info = _open_mpi(launcher) if library.startswith("Open MPI") else ""
    if "options:ft_mpi_support:yes" in info:
        parts.append("goes on without lost ranks")
    else:
        parts.append("restarts when a rank is lost")
    names = sorted({line.split(":")[2] for line in info.splitlines() if line.startswith("mca:btl:")})
    if names:
        parts.append(f"transports {' '.join(names)}")
    for name, value in rank_environment().items():
        given = os.environ.get(name, value)
        if given != value and not name.endswith(_TIMES):
            missing.append(f"{name} is {given!r} in the environment, and without {value!r} ranks that are lost can "
                           f"stop the others; unset it")
    return ", ".join(parts), missing


def version_of(distribution: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _open_mpi(launcher: str | None) -> str:
    """Return the output of ``ompi_info``, which lies beside mpiexec."""
    beside = os.path.dirname(launcher) if launcher else ""
    program = shutil.which("ompi_info", path=os.pathsep.join(filter(None, [beside, os.environ.get("PATH", "")])))
    return _output(program, "--parsable") if program else ""


def _output(*command: str) -> str:
    """Return the output of a program; "" if it fails."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMIX_", "PMI_"))}
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=30, env=ours,
                              check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
