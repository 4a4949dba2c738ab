"""What a killed job leaves, and its end: processes, temporary files, shared memory.

Every process of a job has the job's name in its environment or on its command line, also when it was stopped, or lost
its parent; folders are the job's own.  ``python sweep.py`` does it on another host, for what it reads, and so says that
the host is there.  Knows processes and folders; imports the standard library only.  The launcher calls it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TextIO

__all__ = ["folders_of", "lock", "processes_of", "sweep", "sweep_older"]

_PREFIX, _LOCK = "ag-launch-", "lock"
_PATIENCE = 5.0  # seconds for killed processes to go


def folders_of(job: str) -> list[str]:
    """Where the files of a job are on each host: temporary ones, and shared memory."""
    memory = Path("/dev/shm")
    places = [tempfile.gettempdir(), str(memory)] if memory.is_dir() else [tempfile.gettempdir()]
    return [os.path.join(place, _PREFIX + job) for place in places]


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


def lock(job: str) -> TextIO:
    """Make a job's folders, which stand for a launcher that is there as long as the file is open."""
    folders = [Path(folder) for folder in folders_of(job)]
    for folder in folders:
        folder.mkdir(mode=0o700)
    file = (folders[0] / _LOCK).open("w", encoding="utf-8")
    flock(file, LOCK_EX | LOCK_NB)
    return file


def sweep_older() -> None:
    """Sweep after launchers that were killed on this host."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), path.open("w", encoding="utf-8") as file:  # another user's is none of our business
            flock(file, LOCK_EX | LOCK_NB)
            sweep(path.parent.name.removeprefix(_PREFIX))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    if asked["job"]:
        sweep(asked["job"], asked["folders"])
    print("here")
