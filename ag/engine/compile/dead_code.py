"""Dead-code elimination: launches whose results nobody reads are left out."""

from __future__ import annotations

from ag.engine.compile.liveness import private_blocks
from ag.engine.program import Launch

__all__ = ["without_unread"]


def without_unread(launches: list[Launch]) -> list[Launch]:
    """Leave out launches whose results are private and read by no launch that stays."""
    private = private_blocks(launches)
    kept: list[Launch] = []
    wanted: set[int] = set()  # private blocks that are read further on
    for launch in reversed(launches):
        if all(b.block.address in private and b.block.address not in wanted for b in launch.written):
            continue
        kept.append(launch)
        wanted.update(b.block.address for b in launch.operands)
    return kept[::-1]
