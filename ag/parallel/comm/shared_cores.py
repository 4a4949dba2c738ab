"""How many threads numpy's products of matrices use: fewer while several devices of this processor work at once.

A BLAS takes all cores for a product.  Two CPU devices that both do so wait for each other, and are slower than one.
So whoever lets several work at the same time says which, by `SharedCores`, and each gets its part of the cores; when
nobody does any more, the BLAS has what it had before.  Knows names of devices only.  The trainer and `parallel_apply`
say it; `ag.doctor` asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from threading import RLock
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from threadpoolctl import ThreadpoolController

from ag.engine.cpu_threads import threads

__all__ = ["SharedCores", "blas_threads"]

_lock = RLock()
_sharing: WeakKeyDictionary[SharedCores, frozenset[str]] = WeakKeyDictionary()
_before: dict[str, int] = {}  # threads of each library while they are limited, by file


def _forked() -> None:
    """Whoever shares cores in another thread does not exist in a forked child."""
    global _lock
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class SharedCores:
    """Limits the BLAS while CPU devices work at the same time; until it is closed, or left as a context.

    Parameters
    ----------
    devices : iterable of str
        Those that compute on the processor; devices that several name at once count once.
    """

    def __init__(self, devices: Iterable[str]) -> None:
        with _lock:
            _sharing[self] = frozenset(devices)
            _apply()

    def close(self) -> None:
        """Give the cores back."""
        with _lock:
            _sharing.pop(self, None)
            _apply()

    def __enter__(self) -> SharedCores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


@lru_cache(maxsize=1)
def _libraries() -> list[Any]:
    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]


def _apply() -> None:
    """Give every BLAS as many threads as there are cores for each of the devices in use; as before if it is but one."""
    devices = frozenset[str]().union(*_sharing.values())
    for library in _libraries():
        if len(devices) > 1:
            most = _before.setdefault(library.filepath, library.num_threads)
            library.set_num_threads(min(most, max(1, threads() // len(devices))))
        elif library.filepath in _before:
            library.set_num_threads(_before[library.filepath])
            del _before[library.filepath]


def blas_threads() -> list[tuple[str, int]]:
    """The BLAS libraries of the process, and how many threads each uses now."""
    return [(f"{library.internal_api} {library.version}", library.num_threads) for library in _libraries()]
