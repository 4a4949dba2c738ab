"""What a killed job leaves, and its end: processes, temporary files, shared memory.

Every process of a job has the job's name in its environment or on its command line, also when it was stopped, or lost
its parent; folders are the job's own.  As long as its launcher is there, it holds a lock, in a folder that every
launcher of this host looks into, and which says where the others are:

    /dev/shm/ag-launch-0123456789abcdef/lock     held: a job that runs, whatever TMPDIR it has
    /dev/shm/ag-launch-fedcba9876543210/lock     free: the launcher was killed; /scratch/ag-launch-fedcba9876543210, too

``python sweep.py`` does it on another host, for what it reads, and so says that the host is there.  Knows processes and
folders; imports the standard library only.  The launcher calls it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import NamedTuple, TextIO

__all__ = ["Left", "dies_of", "folders_of", "lock", "processes_of", "ranks_of", "sweep", "sweep_older"]

_PREFIX, _LOCK = "ag-launch-", "lock"
_NAME = re.compile("[0-9a-f]{16}")  # of a job: whatever has it is killed, so nothing shorter is one
_COMMON = ("/dev/shm", "/tmp")
_PATIENCE = 5.0  # seconds for killed processes to go


class Left(NamedTuple):
    """What a launcher that was killed has left: its job's name, folders, and hosts."""

    job: str
    folders: list[str]
    hosts: list[str]


def folders_of(job: str) -> list[str]:
    """Where the files of a job are on each host: temporary ones, and shared memory."""
    return [os.path.join(place, _PREFIX + job) for place in _places()]


def _places() -> list[str]:
    """The folders in which those of jobs are; the last one is the same for all jobs of a host."""
    common = [place for place in _COMMON if os.path.isdir(place)][:1]
    return [*dict.fromkeys([tempfile.gettempdir(), *common])]


def processes_of(job: str) -> list[int]:
    """The processes of a job on this host, as far as the system tells."""
    found, name = [], job.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        for file in ("environ", "cmdline"):
            with suppress(OSError):
                if name in (folder / file).read_bytes() and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
                    break
    return found


def ranks_of(job: str) -> set[int] | None:
    """The ranks that have a process on this host; None if one of its processes may still become another."""
    ranks = set[int]()
    for process in processes_of(job):
        with suppress(OSError):
            folder = Path(f"/proc/{process}")
            line = (folder / "cmdline").read_bytes()
            number = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=([0-9]+)", (folder / "environ").read_bytes())
            parent = int((folder / "stat").read_text("utf-8", "replace").rpartition(") ")[2].split()[1])
            if number is not None:
                ranks.add(int(number[1]))
            elif line == Path(f"/proc/{parent}/cmdline").read_bytes():  # forked, and no program of its own yet
                return None
    return ranks


def dies_of(process: int, number: int) -> bool:
    """Whether a process on this host does nothing else about a signal, as far as the system tells."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text("utf-8", "replace")
        masks = re.findall(r"^Sig(?:Ign|Cgt):\s*([0-9a-f]+)$", status, re.MULTILINE)
        return len(masks) == 2 and not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def sweep(job: str, folders: Iterable[str] = ()) -> None:
    """End all processes of a job on this host, stopped and orphaned ones too, and remove its files.

    Parameters
    ----------
    job : str
    folders : iterable of str, optional
        Where these are; default: where this host's jobs have them.
    """
    end = time.monotonic() + _PATIENCE
    while (processes := processes_of(job)) and time.monotonic() < end:
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for folder in folders or folders_of(job):
        shutil.rmtree(folder, ignore_errors=True)


def lock(job: str, hosts: Sequence[str] = ()) -> TextIO:
    """Make a job's folders, which stand for a launcher that is there as long as the file is open.

    Parameters
    ----------
    job : str
    hosts : sequence of str, optional
        The job's; if this launcher is killed, the next one sweeps them, too.
    """
    *others, last = [Path(folder) for folder in folders_of(job)]
    last.mkdir(mode=0o700)
    file = (last / f"{_LOCK}.new").open("w", encoding="utf-8")
    flock(file, LOCK_EX | LOCK_NB)
    json.dump({"folders": folders_of(job), "hosts": [*hosts]}, file)
    file.flush()
    os.rename(file.name, last / _LOCK)  # whoever sees it finds it held
    for folder in others:
        folder.mkdir(mode=0o700)
    return file


def sweep_older() -> list[Left]:
    """Sweep after launchers that were killed on this host, whichever folder for temporary files they had.

    Returns
    -------
    list of Left
        What is to be swept on other hosts.
    """
    found = []
    for place in dict.fromkeys(map(Path, _places())):
        for path in place.glob(f"{_PREFIX}*/{_LOCK}"):
            job = path.parent.name.removeprefix(_PREFIX)
            if _NAME.fullmatch(job) and _is_ours(path.parent):  # another user's is none of our business
                with suppress(OSError), path.open("r+", encoding="utf-8") as file:
                    flock(file, LOCK_EX | LOCK_NB)
                    left = _read(file, job)
                    sweep(job, {*left.folders, *folders_of(job)})
                    found.append(left)
    return found


def _is_ours(folder: Path) -> bool:
    """Whether this user has made a folder."""
    with suppress(OSError):
        return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid()
    return False


def _read(file: TextIO, job: str) -> Left:
    """What a lock says; nothing, if its launcher was killed as it wrote, or was of a version that wrote nothing."""
    try:
        said = json.load(file)
        return Left(job, [x for x in said["folders"] if Path(x).name == _PREFIX + job], [*said["hosts"]])
    except (ValueError, KeyError, TypeError):
        return Left(job, [], [])


def main() -> None:
    """Do what another host asks."""
    asked = json.load(sys.stdin)
    if asked.get("look"):
        ranks = ranks_of(asked["job"])
        print(json.dumps(None if ranks is None else sorted(ranks)))
    elif asked["job"]:
        sweep(asked["job"], asked["folders"])
    print("here")


if __name__ == "__main__":
    main()
