"""The arena on devices that allow less than a software driver: few and large segments, one pipeline per kernel."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from helpers.devices import expect_reported
from limits.conftest import Limited

import ag
from ag.engine.backends.vulkan.devices import largest_block, spare_bytes
from ag.engine.backends.vulkan.kp import Properties

MIB = 1 << 20
MODEL = """
from ag.engine.device import backend_of
device = backend_of(DEVICE)
with ag.ag_device(DEVICE):
    kept = []
    for i in range(60):  # tensors of 4 MB, most of them the sum of two others
        kept.append(ag.ag_tensor(np.full((1000, 1000), 1 + i, np.float32)))
        if i:
            kept.append(kept[-1] + kept[-2])
    said["right"] = sum(float(t.numpy()[0, 0]) for t in kept)
stats = device.arena.stats()
said["segments"], said["reserved"] = stats.segments, stats.reserved
said["largest"] = max(nbytes for nbytes, _ in device.arena.segments)
said["kernels"] = len(device._kernels._algorithms)
said["bound"] = sum(map(len, device._kernels._algorithms.values()))
"""


def sums() -> float:
    kept: list[int] = []
    for i in range(60):
        kept.append(1 + i)
        if i:
            kept.append(kept[-1] + kept[-2])
    return float(sum(kept))


@pytest.mark.parametrize("limit", ["ALLOC", "ALLOC_UNSAID"])
def test_segments_and_pipelines_where_an_allocation_may_have_64_mib(limited: Limited, tmp_path: Path,
                                                                    limit: str) -> None:
    said = limited(MODEL, PIPELINES=tmp_path / "pipelines", **{limit: 64 * MIB})
    assert said["right"] == sums() and said["largest"] == 64 * MIB
    assert said["segments"] <= -(-said["reserved"] // (64 * MIB)) + 1
    assert said["bound"] > said["kernels"] == (tmp_path / "pipelines").stat().st_size


def test_segments_keep_to_the_memory_budget(limited: Limited) -> None:
    said = limited(MODEL + 'said["sizes"] = [nbytes for nbytes, _ in device.arena.segments]', BUDGET=180 * MIB)
    assert said["right"] == sums()
    first, rest = said["sizes"][:3], said["sizes"][3:]
    assert first == [16 * MIB, 32 * MIB, 64 * MIB] and sum(said["sizes"][:4]) < 180 * MIB
    assert set(rest[1:]) == {16 * MIB} and len(rest) > 10


TOO_LARGE = """
with ag.ag_device(DEVICE):
    said["error"] = error_of(lambda: ag.ag_tensor(np.ones(1 << 23, np.float32)))
    said["right"] = ag.ag_sum(ag.ag_tensor(np.ones(1 << 20, np.float32))).item()
"""


@pytest.mark.parametrize(("limit", "name"), [({"RANGE": 25 * MIB, "ADDRESSES": 0}, "maxStorageBufferRange"),
                                             ({"ALLOC": 25 * MIB}, "maxMemoryAllocationSize")])
def test_a_tensor_above_a_limit_is_refused_by_its_name(limited: Limited, limit: dict[str, int], name: str) -> None:
    said = limited(TOO_LARGE, **limit)
    expect_reported("a tensor larger than a device can bind", said["error"], ag.ArenaError, str(32 * MIB),
                    str(25 * MIB), name, "smaller batches")
    assert said["right"] == MIB


TOO_MANY = """
with ag.ag_device(DEVICE):
    kept = []
    def fill():
        while len(kept) < 200:
            kept.append(ag.ag_tensor(np.full(1 << 20, len(kept), np.float32)))
    said["error"] = error_of(fill)
    said["kept"] = len(kept)
    said["right"] = all(bool((t.numpy() == k).all()) for k, t in enumerate(kept))
"""


def test_too_many_allocations_are_no_memory(limited: Limited) -> None:
    said = limited(TOO_MANY, ALLOCATIONS=12)  # staging buffers take some
    expect_reported("a device that allows no further allocation", said["error"], ag.ArenaError, "4194304 bytes",
                    "in use")
    assert 3 < said["kept"] < 200 and said["right"]


def properties(**limits: int) -> Properties:
    return cast(Properties, {"max_storage_buffer_range": (1 << 32) - 1, "max_allocation_size": 0, "max_buffer_size": 0,
                             **limits})


@pytest.mark.parametrize(("limits", "largest", "name"), [
    ({}, (1 << 32) - 4096, "maxStorageBufferRange"),
    ({"max_storage_buffer_range": 1 << 40}, (1 << 32) - 4096, "32 bits"),
    ({"max_storage_buffer_range": 1 << 27, "max_allocation_size": 1 << 31}, 1 << 27, "maxStorageBufferRange"),
    ({"max_allocation_size": 1 << 31, "max_buffer_size": 1 << 32}, 1 << 31, "maxMemoryAllocationSize"),
    ({"max_allocation_size": 1 << 32, "max_buffer_size": 1 << 31}, 1 << 31, "maxBufferSize"),
    ({"max_allocation_size": 4294967292}, (1 << 32) - 4096, ""),
])
def test_the_largest_segment(limits: dict[str, int], largest: int, name: str) -> None:
    given = properties(**limits)
    for found, bound in largest_block(given), largest_block(given, addresses=False):
        assert found == largest and name in bound


@pytest.mark.parametrize(("limits", "largest", "name"), [
    ({}, (1 << 32) - 4096, "32 bits"),
    ({"max_storage_buffer_range": 1 << 27, "max_allocation_size": 1 << 31}, 1 << 31, "maxMemoryAllocationSize"),
    ({"max_storage_buffer_range": 1 << 27, "max_buffer_size": 1 << 30}, 1 << 30, "maxBufferSize"),
])
def test_the_largest_block_where_buffers_have_addresses(limits: dict[str, int], largest: int, name: str) -> None:
    found, bound = largest_block(properties(**limits), addresses=True)
    assert found == largest and name in bound


def test_spare_bytes_are_those_of_the_heaps_that_are_used() -> None:
    heaps = [(256 * MIB, True), (64 << 30, False), (8 << 30, True)]
    assert spare_bytes(heaps, [(1, 0), (2, 0), (6 << 30, 1 << 30)], [2]) == [5 << 30]
    assert spare_bytes(heaps, [(1, 0), (2, 0), (1 << 30, 2 << 30)], [2]) == [0]
    assert spare_bytes(heaps, [(1, 0), (2, 0), (9 << 30, 0)], [2]) == [8 << 30]
    assert spare_bytes(heaps, [(9, 5), (32 << 30, 2 << 30), (1, 0)], [0, 1]) == [4, 30 << 30]
