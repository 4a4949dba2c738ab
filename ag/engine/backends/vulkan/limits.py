"""What a device allows: how large its allocations may be, and what a kernel may need.

The numbers are the driver's own (`Properties`); nothing here is measured.  Knows no buffer and no primitive.  The
backend asks before it makes an arena, `pipelines` and `tiles` before they choose a kernel.
"""

from __future__ import annotations

from ag.engine.backends.vulkan.kp_types import Properties

__all__ = ["largest_segment", "spare_bytes"]

_COUNTED = 1 << 32  # Kompute counts bytes in 32 bits
_PAGE = 4096  # drivers round allocations up to pages at most


def largest_segment(limits: Properties) -> tuple[int, str]:
    """How large a segment of the arena may be, and the limit that says so."""
    largest = {
        "Vulkan's maxStorageBufferRange": limits["max_storage_buffer_range"],
        "Vulkan's maxMemoryAllocationSize": limits["max_allocation_size"],
        "Vulkan's maxBufferSize": limits["max_buffer_size"],
        "Kompute counts bytes in 32 bits": _COUNTED - 1,
    }
    told = [(nbytes & -_PAGE, name) for name, nbytes in largest.items() if nbytes]  # 0: the driver does not tell
    return min(told, key=lambda limit: limit[0])


def spare_bytes(heaps: list[tuple[int, bool]], budget: list[tuple[int, int]]) -> int:
    """What the driver would still give of the largest heap of the device's own, by VK_EXT_memory_budget."""
    size, index = max((size, i) for i, (size, local) in enumerate(heaps) if local)
    most, used = budget[index]
    return max(0, min(most, size) - used)
