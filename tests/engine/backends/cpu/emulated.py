"""A plugin of pytest, ``-p …cpu.emulated``: AG_EMULATOR runs the launches of CPU devices, for another processor.

AG_EMULATED is a folder with ``kernels.so``, its manifest, and ``emulated`` of emulated.c.  Memory is shared with it.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from table.rows import Array

from ag.engine.backends.cpu.library import Library

FOLDER, EMULATOR = "AG_EMULATED", "AG_EMULATOR"
ADDRESS, NBYTES = 1 << 44, 1 << 32  # of the shared memory; neither programs nor libraries lie there
_READ_WRITE, _SHARED, _NORESERVE, _FIXED_NOREPLACE = 3, 0x1, 0x4000, 0x100000  # sys/mman.h of Linux


class Memory:
    """The memory that both processes see at `ADDRESS`: a page comes into being when it is written."""

    def __init__(self) -> None:
        self.file = os.memfd_create("emulated")
        os.ftruncate(self.file, NBYTES)
        c = ctypes.CDLL(None, use_errno=True)
        c.mmap.restype = ctypes.c_void_p
        c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        found = c.mmap(ADDRESS, NBYTES, _READ_WRITE, _SHARED | _NORESERVE | _FIXED_NOREPLACE, self.file, 0)
        assert found == ADDRESS, f"no memory at {ADDRESS:#x}: {os.strerror(ctypes.get_errno())}"
        self.used = 0

    def take(self, nbytes: int) -> Array:
        """A segment for an arena, as `_memory` of ag/engine/backends/cpu/backend.py makes them."""
        begin, self.used = ADDRESS + self.used, self.used + nbytes + -nbytes % 4096
        assert self.used <= NBYTES
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(begin))


class Emulated(Library):
    """The kernels of a folder, in a process under an emulator."""

    memory: ClassVar[Memory]

    def __init__(self, folder: Path, manifest: dict[str, Any], level: str | None) -> None:
        self.level, self.lacks, self._lock = "", "", threading.Lock()
        names = [f"ag_{name}" for name in manifest["kernels"]]
        program = [folder / "emulated", folder / "kernels.so", str(self.memory.file), hex(ADDRESS), hex(NBYTES), *names]
        self._process = subprocess.Popen([*shlex.split(os.environ[EMULATOR]), *program], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, pass_fds=[self.memory.file])
        addresses = np.frombuffer(self._answer(8 * len(names)), np.int64).tolist()
        there = SimpleNamespace(**{name: ctypes.c_void_p(x) for name, x in zip(names, addresses, strict=True)})
        functions = frozenset(manifest["functions"])
        self.kernels = {name: MODULE._kernel(there, name, entry, functions)
                        for name, entry in manifest["kernels"].items()}
        self._run = self._run_briefly = self._ask  # what the base class asks its library for
        self.launch_at = self.run_at = self.pool_at = 0
        self.asked = 0

    def _answer(self, nbytes: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(nbytes)
        assert len(found) == nbytes, f"the emulated process ended with {self._process.wait()}"
        return found

    def _ask(self, words: bytes, launches: int, threads: int, callers: int = 1) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(np.int64([len(words), launches, threads]).tobytes() + words)
            self._process.stdin.flush()
            self._answer(1)
            self.asked += 1

    def launch_briefly(self, words: bytes) -> None:
        self._ask(words, 1, 1)

    def close(self) -> None:
        self._process.communicate(timeout=60)


MODULE = import_module("ag.engine.backends.cpu.library")


def pytest_configure(config: pytest.Config) -> None:
    Emulated.memory = Memory()
    import_module("ag.engine.backends.cpu.backend")._memory = Emulated.memory.take
    MODULE.found.cache_clear()
    MODULE._BUILT, MODULE.Library = Path(os.environ[FOLDER]), Emulated
    assert isinstance(MODULE.library(), Emulated)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process, and say how many launches it ran: a run in which it had none compared nothing."""
    found = MODULE.library()
    found.close()
    print(f"\n{found.asked} calls were emulated")
