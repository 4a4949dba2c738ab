"""Compare the needs of kernels and allocations with the limits that a device's driver reports."""

from __future__ import annotations

import sys
from typing import NamedTuple

from ag.engine.backends.vulkan.kp_types import Properties

VULKAN_1_1 = 1 << 22 | 1 << 12  # has vkCmdDispatchBase
MOST_GROUPS = 65535  # per axis of a grid, the least that any driver offers
_COUNTED = 1 << 32  # Kompute counts bytes in 32 bits
_LAVAPIPE = 13  # its VkDriverId
_TURNS = 65_000  # before Mesa 25 it ended all loops of an invocation after 65,535; short loops take some
_PAGE = 4096  # drivers round allocations up to pages at most


class Needs(NamedTuple):
    """The needs of a kernel."""

    threads: int  # invocations of a workgroup
    shared_bytes: int  # of a workgroup
    bindings: int = 0  # storage buffers
    turns: int = 0  # of an invocation's loops, if they grow with the operands
    subgroup: int = 0  # invocations of every subgroup, if the kernel depends on it


def lacking(needs: Needs, limits: Properties) -> str:
    """Say what the device lacks for a kernel; empty if it fits."""
    threads = min(limits["max_work_group_invocations"], limits["max_work_group_size"][0])
    rows = [(needs.bindings, limits["max_storage_buffers"], "storage buffers"),
            (needs.threads, threads, "invocations per workgroup"),
            (needs.shared_bytes, limits["max_shared_memory"], "bytes of shared memory"),
            (needs.turns, most_turns(limits), "turns of an invocation's loops")]
    if size := required_subgroup(needs, limits):
        rows.append((needs.threads // size, limits["max_required_subgroups"], f"subgroups of {size} invocations"))
    return " and ".join(f"{wanted} {what} where the device has {most}" for wanted, most, what in rows if wanted > most)


def required_subgroup(needs: Needs, limits: Properties) -> int:
    """Return the size of subgroups that a pipeline must require; 0: none, or it cannot.

    Without that, a driver may choose another size than it reports, as Intel's does.
    """
    least, most = limits["required_subgroup_sizes"]
    return needs.subgroup if least <= needs.subgroup <= most else 0


def most_turns(limits: Properties) -> int:
    """Return how often all loops of an invocation may turn, together."""
    return _TURNS if limits["driver_id"] == _LAVAPIPE else sys.maxsize


def largest_segment(limits: Properties) -> tuple[int, str]:
    """Return the most bytes of a segment that descriptors cover, and the name of the limit."""
    return _least({"Vulkan's maxStorageBufferRange": limits["max_storage_buffer_range"], **_of_allocations(limits)})


def largest_block(limits: Properties, addresses: bool) -> tuple[int, str]:
    """Return the most bytes of a single block, which needs no descriptor if buffers have addresses."""
    return _least(_of_allocations(limits)) if addresses else largest_segment(limits)


def _of_allocations(limits: Properties) -> dict[str, int]:
    return {
        "Vulkan's maxMemoryAllocationSize": limits["max_allocation_size"],
        "Vulkan's maxBufferSize": limits["max_buffer_size"],
        "Kompute counts bytes in 32 bits": _COUNTED - 1,
    }


def _least(largest: dict[str, int]) -> tuple[int, str]:
    told = [(nbytes & -_PAGE, name) for name, nbytes in largest.items() if nbytes]  # 0: the driver reports none
    return min(told, key=lambda limit: limit[0])


def spare_bytes(heaps: list[tuple[int, bool]], budget: list[tuple[int, int]], used: list[int]) -> list[int]:
    """Return the free bytes of each used heap, by VK_EXT_memory_budget."""
    return [max(0, min(budget[i][0], heaps[i][0]) - budget[i][1]) for i in used]
