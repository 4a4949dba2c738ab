"""How a driver compiles kernels: several at once, and what it keeps of them, in a file per kind of device.

A driver compiles a kernel in 1 to 500 ms, and takes what it finds in its pipeline cache in much less; drivers that keep
files of their own lose them in containers.  The file, in the user's cache directory, is a gain and never a condition:
one that is broken, another driver's or cannot be written is passed over without a word.  Knows no kernel by name.  The
Vulkan backend reads the file when a device is opened, and writes it when one is closed that has compiled something.
"""

from __future__ import annotations

import os
import struct
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ag.engine.backends.vulkan.kp_types import Algorithm, Asked, Manager
from ag.engine.cpu_threads import cores
from ag.log import log

__all__ = ["KeptPipelines", "compiled"]

_MAGIC = b"ag pipelines 1\n"
_DIGEST = 32
_HEADER = struct.Struct("<IIII16s")  # of what a driver writes: length, version 1, vendor, device, its UUID for caches
_MOST_THREADS = 8  # some drivers take a hundred megabytes while they compile a kernel


def compiled(manager: Manager, asked: list[Asked]) -> list[Algorithm | None]:
    """What was asked for, made in as many threads as the process may use cores; None for what was not made."""
    threads = min(cores(), _MOST_THREADS, len(asked))
    return manager.algorithms(asked, threads) if threads > 1 else [None] * len(asked)


class KeptPipelines:
    """The file of one device, and its driver's cache.

    Parameters
    ----------
    manager : kp.Manager
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        properties = manager.get_device_properties()
        uuid = properties["pipeline_cache_uuid"]
        self._made_for = properties["vendor_id"], properties["device_id"], uuid
        self._name = f"{uuid.hex()}-{properties['driver_version']}.bin"
        self._compiled = manager.pipelines()  # of these the file knows

    def load(self) -> None:
        """Hand the driver what the file has."""
        with suppress(OSError, RuntimeError, MemoryError):  # RuntimeError: no home, or the driver does not take it
            content = self._path().read_bytes()
            data = content[len(_MAGIC) + _DIGEST :]
            if content == _MAGIC + sha256(data).digest() + data and self._is_ours(data):
                self._manager.add_pipeline_cache(data)

    def save(self) -> None:
        """Write what the driver has, and what other processes have written, if it has compiled anything since."""
        compiled = self._manager.pipelines()
        if compiled == self._compiled:
            return
        self.load()
        try:
            self._write(self._manager.pipeline_cache())
        except (OSError, RuntimeError, MemoryError) as error:
            log.debug("the driver's compiled kernels are not kept (%s).", error)
        self._compiled = compiled

    def _write(self, data: bytes) -> None:
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(_MAGIC + sha256(data).digest() + data)
                file.close()
                os.replace(file.name, path)  # whoever reads sees the old file or the new one
            except OSError:
                os.unlink(file.name)
                raise

    def _path(self) -> Path:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ag" / self._name

    def _is_ours(self, data: bytes) -> bool:
        """Whether this driver wrote it for this kind of device; drivers must look, and some do not."""
        if len(data) < _HEADER.size:
            return False
        length, version, vendor, device, uuid = _HEADER.unpack_from(data)
        return length >= _HEADER.size and version == 1 and (vendor, device, uuid) == self._made_for
