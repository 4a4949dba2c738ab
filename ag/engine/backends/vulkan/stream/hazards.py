"""Hazard tracking: is a memory barrier needed before the next launch?

Work submitted to a Vulkan queue may overlap unless a barrier separates it.  The tracker remembers the byte ranges
read and written since the last barrier and answers for the next launch whether it would read something still being
written (RAW), overwrite something still being read (WAR) or written (WAW).  It knows addresses only; the Vulkan
recorder asks it before every dispatch and copy.
"""

from __future__ import annotations

__all__ = ["HazardTracker", "Range"]

Range = tuple[int, int]  # [start, end) in arena addresses

_MOST_RANGES = 256  # beyond this, one barrier is cheaper than comparing with everything


class HazardTracker:
    """Byte ranges touched since the last barrier."""

    def __init__(self) -> None:
        self._reads: list[Range] = []
        self._writes: list[Range] = []

    def barrier(self) -> None:
        """Forget everything: a barrier was recorded, or a new command buffer starts with one."""
        self._reads.clear()
        self._writes.clear()

    def launch(self, reads: list[Range], writes: list[Range]) -> bool:
        """Note a launch; True if a barrier must be recorded before it (which then also is noted)."""
        needed = (
            len(self._reads) + len(self._writes) > _MOST_RANGES
            or _overlap(reads, self._writes)
            or _overlap(writes, self._writes)
            or _overlap(writes, self._reads)
        )
        if needed:
            self.barrier()
        self._reads += reads
        self._writes += writes
        return needed


def _overlap(some: list[Range], others: list[Range]) -> bool:
    for a, b in some:
        for c, d in others:
            if a < d and c < b:
                return True
    return False
