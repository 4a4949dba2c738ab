"""The end of a killed job: its processes, temporary files and shared memory.

Every process of a job has the job's name in its environment or on its command line.  A launcher that lives holds a lock
in each folder of its job.  The lock lists all folders, and shared memory is where every launcher looks for locks.
Run by its path on another host, this file does what stdin asks.  Imports the standard library only.
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
from contextlib import ExitStack, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import NamedTuple, TextIO

_PREFIX, _LOCK = "ag-launch-", "lock"
_NAME = re.compile("[0-9a-f]{16}")  # of a job: whatever has it is killed, so nothing shorter is one
_COMMON = ("/dev/shm", "/tmp")
_PATIENCE = 5.0  # seconds for killed processes to go


class Left(NamedTuple):
    """A job whose launcher was killed: its name, folders, and hosts."""

    job: str
    folders: list[str]
    hosts: list[str]


def folders_of(job: str) -> list[str]:
    """Return the folders of a job on each host: for temporary files, and in shared memory."""
    return [os.path.join(place, _PREFIX + job) for place in _places()]


def _places() -> list[str]:
    """Return the folders in which those of jobs are; the last one is the same for all jobs of a host."""
    common = [place for place in _COMMON if os.path.isdir(place)][:1]
    return [*dict.fromkeys([tempfile.gettempdir(), *common])]


def processes_of(job: str) -> list[int]:
    """Return the processes of a job on this host, as far as the system tells."""
    found, name = [], job.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        for file in ("environ", "cmdline"):
            with suppress(OSError):
                if name in (folder / file).read_bytes() and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
                    break
    return found


def ranks_of(job: str) -> set[int] | None:
    """Return the ranks that have a process on this host; None if a process may still become another rank."""
    ranks = set[int]()
    for process in processes_of(job):
        with suppress(OSError):
            folder = Path(f"/proc/{process}")
            line = (folder / "cmdline").read_bytes()
            number = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=([0-9]+)", (folder / "environ").read_bytes())
            _, parent, _, session = (folder / "stat").read_text("utf-8", "replace").rpartition(") ")[2].split()[:4]
            if number is not None:
                ranks.add(int(number[1]))
            elif line == Path(f"/proc/{parent}/cmdline").read_bytes() and int(session) != process:
                return None  # forked, and no program of its own yet; a daemon that was has a session of its own
    return ranks


def dies_of(process: int, number: int) -> bool:
    """Return whether a signal ends a process on this host, as far as the system tells."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text("utf-8", "replace")
        masks = re.findall(r"^Sig(?:Ign|Cgt):\s*([0-9a-f]+)$", status, re.MULTILINE)
        return len(masks) == 2 and not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def sweep(job: str, folders: Iterable[str] = ()) -> None:
    """End all processes of a job on this host, stopped and orphaned ones too, and remove its files.

    Its folders are `folders`, or where this host's jobs have them.
    """
    end = time.monotonic() + _PATIENCE
    while (processes := processes_of(job)) and time.monotonic() < end:
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for folder in folders or folders_of(job):
        if _is_ours(Path(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def lock(job: str, hosts: Sequence[str] = ()) -> ExitStack:
    """Make a job's folders and hold their locks until the result is closed.

    If this launcher is killed, the next one sweeps `hosts`, too.

    Raises
    ------
    ValueError
        If a folder is there already, or cannot be made.
    """
    files = ExitStack()
    for folder in map(Path, reversed(folders_of(job))):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ValueError(f"launch: the folder {folder} cannot be made ({error.strerror}); set TMPDIR to a folder "
                             f"that this user may write to.") from error
        file = files.enter_context((folder / f"{_LOCK}.new").open("w", encoding="utf-8"))
        flock(file, LOCK_EX | LOCK_NB)
        json.dump({"folders": folders_of(job), "hosts": [*hosts]}, file)
        file.flush()
        os.rename(file.name, folder / _LOCK)  # so that a launcher that sees it finds it held
    return files


def sweep_older() -> list[Left]:
    """Sweep after launchers that were killed on this host, whatever their TMPDIR; return what other hosts have."""
    found = []
    for place in dict.fromkeys(map(Path, _places())):
        for path in place.glob(f"{_PREFIX}*/{_LOCK}"):
            job = path.parent.name.removeprefix(_PREFIX)
            if _NAME.fullmatch(job) and _is_ours(path.parent):
                with suppress(OSError), path.open("r+", encoding="utf-8") as file:
                    flock(file, LOCK_EX | LOCK_NB)
                    left = _read(file, job)
                    sweep(job, {*left.folders, *folders_of(job)})
                    found.append(left)
    return found


def _is_ours(folder: Path) -> bool:
    """Return whether this user has made a folder, and alone may write to it."""
    with suppress(OSError):
        found = folder.stat()
        return (folder.is_dir() and not folder.is_symlink() and found.st_uid == os.geteuid()
                and not found.st_mode & 0o022)
    return False


def _read(file: TextIO, job: str) -> Left:
    """Return what a lock says: nothing, if its launcher was killed as it wrote, or its version wrote nothing."""
    try:
        said = json.load(file)
        return Left(job, [x for x in said["folders"] if Path(x).name == _PREFIX + job], [*map(str, said["hosts"])])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Left(job, [], [])


def main() -> None:
    """Sweep this host, or list its ranks, as another host asks."""
    asked = json.load(sys.stdin)
    if asked.get("look"):
        ranks = ranks_of(asked["job"])
        print(json.dumps(None if ranks is None else sorted(ranks)))
    elif asked["job"]:
        sweep(asked["job"], asked["folders"])
    print("here")


if __name__ == "__main__":
    main()
