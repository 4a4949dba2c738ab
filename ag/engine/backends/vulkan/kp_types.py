"""Types of Kompute's binding `kp`, the compiled extension `_kp`; third_party/kp/README.md describes its calls."""

from __future__ import annotations

from typing import Protocol, TypedDict

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


class Properties(TypedDict):
    """Limits and names of a device; those of an open one lack features and heaps."""

    api_version: int
    arena_heaps: list[int]
    compute_units: int
    device_id: int
    device_name: str
    device_type: int
    driver_id: int
    driver_info: str
    driver_name: str
    driver_version: int
    features: dict[str, bool]
    keeps_denormals: bool
    max_allocation_size: int
    max_buffer_size: int
    max_required_subgroups: int
    max_shared_memory: int
    max_storage_buffer_range: int
    max_storage_buffers: int
    max_work_group_invocations: int
    max_work_group_size: tuple[int, int, int]
    memory_heaps: list[tuple[int, bool]]
    pipeline_cache_uuid: bytes
    preserves_nan: bool
    queue_draws: bool
    queue_family: int
    required_subgroup_sizes: tuple[int, int]
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
    """An open device."""

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

    def enabled(self) -> set[str]: ...

    def memory_heaps(self) -> list[tuple[int, bool]]: ...

    def arena_heaps(self) -> list[int]: ...

    def memory_budget(self) -> list[tuple[int, int]]: ...

    def cooperative_matrices(self) -> list[tuple[int, ...]]: ...
