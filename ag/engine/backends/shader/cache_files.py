"""Files that later processes read: the driver's compiled kernels, and choices that were measured.

A cache never fails a device: where a file cannot be used, the log says so once, and the process goes on without it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from ag.log import log

_REMEDY = "set XDG_CACHE_HOME to a folder of this user, or each process compiles kernels anew"
_ADMINISTRATOR = 0  # uid
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class CacheError(OSError):
    """A cache file that cannot be used; the text says why."""


@cache
def _warn(text: str) -> None:
    log.warning("Cache: %s.", text)


def warn_once(error: CacheError) -> None:
    _warn(str(error))


@cache
def _absolute(folder: str) -> Path:
    """Resolve a folder that the environment names; the same later, in another working directory."""
    return Path(folder).absolute()


def cache_folder() -> Path:
    """Return the folder, which need not exist; raise CacheError where there is no home."""
    try:
        named = os.environ.get("XDG_CACHE_HOME")
        return (_absolute(named) if named else _absolute(str(Path.home())) / ".cache") / "ag"
    except (RuntimeError, KeyError, OSError) as error:  # no home, or a relative one and no working directory
        raise CacheError(f"there is no home for a cache ({error}); {_REMEDY}") from error


def fault_of_folder() -> str:
    """Say why files cannot be kept in the folder, and what to do; empty if they can."""
    try:
        folder = cache_folder()
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if there == folder:
            _check_owner(folder, os.stat(folder))
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return ""
    except CacheError as error:
        return str(error)
    except OSError as error:
        return f"{error}; {_REMEDY}"
    return f"{there} cannot be written; {_REMEDY}"


def read_cache(name: str, most: int) -> bytes | None:
    """Read a plain file of at most so many bytes; None if there is none, CacheError if others could have written it."""
    path = cache_folder() / name
    try:
        # Opening a pipe would wait for its other end.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(number)
            _check_owner(path, found)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                raise CacheError(f"{path} is no plain file of at most {most} bytes; remove it")
            if os.name == "posix" and found.st_mode & _OTHERS_MAY_WRITE:
                raise CacheError(f"{path} may be written by other users; remove it, or take that right away")
            with os.fdopen(number, "rb", closefd=False) as file:
                return file.read(most)
        finally:
            os.close(number)
    except CacheError:
        raise
    except FileNotFoundError:
        return None
    except (OSError, MemoryError) as error:
        raise CacheError(f"{path} cannot be read ({error}); {_REMEDY}") from error


def write_cache(name: str, content: bytes) -> None:
    """Replace a file in one operation, so that readers see the old or the new one; CacheError if that is impossible."""
    path = cache_folder() / name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(path.parent, os.stat(path.parent))
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:  # of mode 0600
            try:
                file.write(content)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except CacheError:
        raise
    except (OSError, MemoryError) as error:
        raise CacheError(f"{path} cannot be written ({error}); {_REMEDY}") from error


def _check_owner(path: Path, found: os.stat_result) -> None:
    if os.name == "posix" and found.st_uid not in (_ADMINISTRATOR, os.geteuid()):
        raise CacheError(f"{path} belongs to another user (uid {found.st_uid}); {_REMEDY}")
