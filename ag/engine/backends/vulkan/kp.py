"""Load Kompute's binding `kp` (third_party/kp/README.md), give its types, and translate its errors."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ag.engine.backends.shader.manifest import Limits, check_build, not_built
from ag.errors import AgError, ArenaError, DeviceError, KernelError
from ag.version import install_line

_EXTENSION = f"{__package__}._kp"

Words = npt.NDArray[np.uint32]


class Properties(Limits):
    """Limits and names of a device; those of an open one lack features and heaps."""

    api_version: int
    arena_heaps: list[int]
    compute_units: int
    device_id: int
    device_name: str
    device_type: int
    driver_info: str
    driver_name: str
    driver_version: int
    features: dict[str, bool]
    keeps_denormals: bool
    max_allocation_size: int
    max_buffer_size: int
    max_storage_buffer_range: int
    memory_heaps: list[tuple[int, bool]]
    pipeline_cache_uuid: bytes
    preserves_nan: bool
    queue_draws: bool
    queue_family: int
    rounds_to_nearest: bool
    subgroup_size: int
    timestamp_period: float
    timestamp_valid_bits: int
    transfer_family: int
    uuid: bytes
    vendor_id: int


class Tensor(Protocol):
    """Memory of a device, or of the host where the device reads it; `data` only if the host sees it."""

    def data(self) -> Words: ...


class Algorithm(Protocol):
    """A pipeline bound to tensors, opaque here."""


Asked = tuple[list[Tensor], bytes, tuple[int, int, int], Words, Words, int]  # the arguments of `Manager.algorithm`


class Sequence(Protocol):
    """A command buffer."""

    def dispatch(self, algorithm: Algorithm, push: bytes, x: int, y: int, z: int, barrier: bool, first_x: int,
                 first_y: int, copies: bool) -> object: ...
    def copy(self, source: Tensor, target: Tensor, start: int, to: int, nbytes: int, barrier: bool,
             host: bool) -> object: ...
    def to_host(self) -> object: ...
    def end(self) -> object: ...
    def eval(self) -> Sequence: ...
    def eval_async_after(self, before: list[Sequence]) -> Sequence: ...
    def eval_await(self) -> Sequence: ...
    def is_running(self) -> bool: ...
    def clear(self) -> object: ...
    def get_timestamps(self) -> list[int]: ...


class Manager(Protocol):
    """An open device; an error of `bare` is one of `faults.errors`, for its caller to translate."""

    bare: Manager
    faults: Faults

    def sequence(self, queue: int = 0, timestamps: int = 0) -> Sequence: ...
    def transfers_apart(self) -> bool: ...
    def arena(self, words: int, addressed: bool = False) -> Tensor: ...
    def address(self, tensor: Tensor) -> int: ...
    def host_sees(self) -> bool: ...
    def host_access(self, arena: Tensor) -> tuple[bool, bool]: ...
    def tensor_t(self, values: Words, kind: object) -> Tensor: ...
    def algorithm(self, tensors: list[Tensor], spirv: bytes, grid: tuple[int, int, int], constants: Words,
                  push: Words, subgroup_size: int = 0) -> Algorithm: ...
    def algorithms(self, wanted: list[Asked], threads: int) -> list[Algorithm | None]: ...
    def bound(self, algorithm: Algorithm, tensors: list[Tensor]) -> Algorithm: ...
    def pipelines(self) -> int: ...
    def pipeline_cache(self) -> bytes: ...
    def add_pipeline_cache(self, data: bytes) -> object: ...
    def get_device_properties(self) -> Properties: ...
    def features(self) -> dict[str, bool]: ...
    def memory_heaps(self) -> list[tuple[int, bool]]: ...
    def arena_heaps(self) -> list[int]: ...
    def memory_budget(self) -> list[tuple[int, int]]: ...
    def cooperative_matrices(self) -> list[tuple[int, ...]]: ...


def kompute() -> ModuleType:
    """Import `_kp`, Kompute's binding with the changes of third_party/kp; DeviceError with the reason if not built."""
    try:
        return importlib.import_module(_EXTENSION)
    except ImportError as error:
        why = not_built(Path(__file__).parent) or error
        raise DeviceError(f"Vulkan: this installation of ag has no Vulkan extension ({why}); a wheel has it "
                          f"(`{install_line()}`), and `pip install .` in a clone builds it.") from error


def check_kernels() -> None:
    """Raise KernelError if the manifest or the file of a kernel is missing or broken."""
    try:
        check_build()
    except KernelError as error:
        raise KernelError(f"Vulkan: {error}") from error


class Faults:
    """Translate the errors of `kp` on one device, which has classes of its own: those of signal handlers pass."""

    def __init__(self, kp: ModuleType, device: str) -> None:
        self.lost: type[Exception] = kp.DeviceLostError
        self.errors: tuple[type[Exception], ...] = (kp.OutOfMemoryError, kp.Error)  # to catch
        self._device = device

    def told(self, error: Exception, launch: str = "", seconds: float = 0.0) -> AgError:
        """Return ag's error for one of `kp`; if a submission lost the device, `launch` was its costliest."""
        if isinstance(error, self.lost):
            where = (f" in a submission whose costliest launch is {launch}; if the driver's watchdog ended it, as it "
                     f"does after some seconds, smaller batches or AG_SUBMIT_MS={max(1, round(250 * seconds))} help")
            return DeviceError(f"{self._device}: the device was lost ({error}){where if launch else ''}. Its tensors "
                               f"are gone: go on from the last checkpoint, after ag_shutdown() or in a new process.")
        if isinstance(error, MemoryError):
            return ArenaError(f"{self._device}: the driver has no memory for a call ({error}); free tensors, take "
                              f"smaller batches, or close what else uses the device.")
        return DeviceError(f"{self._device}: the driver refuses a call ({error}); update it, or use another device, "
                           f"such as 'cpu'.")


class Guarded:
    """A manager whose calls raise errors of ag instead of those of `kp`."""

    def __init__(self, manager: Manager, faults: Faults) -> None:
        self.bare, self.faults = manager, faults

    def __getattr__(self, name: str) -> Any:
        call, faults = getattr(self.bare, name), self.faults

        def guarded(*args: object, **options: object) -> object:
            try:
                return call(*args, **options)
            except faults.errors as error:
                raise faults.told(error) from error

        setattr(self, name, guarded)  # found by the next lookup
        return guarded
