"""What a device allows: how large its allocations may be, and what a kernel may need.

The numbers are the driver's own (`Properties`); nothing here is measured.  Knows no buffer and no primitive.  The
backend asks before it makes an arena, `plans` and `tiles` before they choose a kernel.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from ag.engine.backends.vulkan.kp_types import Properties

__all__ = ["MOST_GROUPS", "VULKAN_1_1", "Needs", "lacking", "largest_block", "largest_segment", "most_turns",
           "required_subgroup", "spare_bytes"]

VULKAN_1_1 = 1 << 22 | 1 << 12  # which has vkCmdDispatchBase
MOST_GROUPS = 65535  # per axis of a grid, the least that any driver offers
_COUNTED = 1 << 32  # Kompute counts bytes in 32 bits
_LAVAPIPE = 13  # its VkDriverId
_TURNS = 65_000  # it ended all loops of an invocation after 65,535 before Mesa 25, of which short loops take some
_PAGE = 4096  # drivers round allocations up to pages at most


class Needs(NamedTuple):
    """What a kernel needs of a device.

    Attributes
    ----------
    threads : int
        Invocations of a workgroup.
    shared_bytes : int
        Shared memory of a workgroup.
    bindings : int
        Storage buffers.
    turns : int
        Of an invocation's loops, where they grow with the operands.
    subgroup : int
        Invocations of every subgroup, where the kernel depends on it; 0: it does not.
    """

    threads: int
    shared_bytes: int
    bindings: int = 0
    turns: int = 0
    subgroup: int = 0


def lacking(needs: Needs, limits: Properties) -> str:
    """What a kernel needs and the device does not have; empty if it fits."""
    threads = min(limits["max_work_group_invocations"], limits["max_work_group_size"][0])
    rows = [(needs.bindings, limits["max_storage_buffers"], "storage buffers"),
            (needs.threads, threads, "invocations per workgroup"),
            (needs.shared_bytes, limits["max_shared_memory"], "bytes of shared memory"),
            (needs.turns, most_turns(limits), "turns of an invocation's loops")]
    if size := required_subgroup(needs, limits):
        rows.append((needs.threads // size, limits["max_required_subgroups"], f"subgroups of {size} invocations"))
    return " and ".join(f"{wanted} {what} where the device has {most}" for wanted, most, what in rows if wanted > most)


def required_subgroup(needs: Needs, limits: Properties) -> int:
    """What a pipeline must require for the subgroups that its kernel was planned for; 0: nothing, or it cannot.

    A driver that is not told may make others than the size that it reports, as Intel's does.
    """
    least, most = limits["required_subgroup_sizes"]
    return needs.subgroup if least <= needs.subgroup <= most else 0


def most_turns(limits: Properties) -> int:
    """How often all loops of an invocation may turn, together."""
    return _TURNS if limits["driver_id"] == _LAVAPIPE else sys.maxsize


def largest_segment(limits: Properties) -> tuple[int, str]:
    """How large a segment of the arena may be that descriptors cover, and the limit that says so."""
    return _least({"Vulkan's maxStorageBufferRange": limits["max_storage_buffer_range"], **_of_allocations(limits)})


def largest_block(limits: Properties, addresses: bool) -> tuple[int, str]:
    """The same of a single block, which no descriptor need cover where buffers have addresses."""
    return _least(_of_allocations(limits)) if addresses else largest_segment(limits)


def _of_allocations(limits: Properties) -> dict[str, int]:
    return {
        "Vulkan's maxMemoryAllocationSize": limits["max_allocation_size"],
        "Vulkan's maxBufferSize": limits["max_buffer_size"],
        "Kompute counts bytes in 32 bits": _COUNTED - 1,
    }


def _least(largest: dict[str, int]) -> tuple[int, str]:
    told = [(nbytes & -_PAGE, name) for name, nbytes in largest.items() if nbytes]  # 0: the driver does not tell
    return min(told, key=lambda limit: limit[0])


def spare_bytes(heaps: list[tuple[int, bool]], budget: list[tuple[int, int]], used: list[int]) -> list[int]:
    """What the driver would still give of each heap that is used, by VK_EXT_memory_budget."""
    return [max(0, min(budget[i][0], heaps[i][0]) - budget[i][1]) for i in used]
