"""What a device wants: which launches the compiler joins, and which of several ways to compute suits it.

A backend makes one `Target` for its device.  The compiler (`ag.engine.compile`) and the launch helpers of ops ask it,
and so know no device.  It must not know buffers or primitives: its answers depend on sizes alone, so that a device
always adds up in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Target"]

# Longer sums are made in pieces: they keep more digits, and a driver ends an invocation's loops after 65,535 turns.
_LONGEST_SUM = 1 << 15
_SHORTEST_PIECE = 512  # below, adding the pieces up costs more than it gains
_MOST_PIECES = 16
_TILE = 64  # rows and columns of what a unit of a device makes at a time, about
_MOST_FEATURES = 128  # of an attention head, in the kernels that hold a tile of it
_LONGEST_SEQUENCE = 1 << 13  # a driver ends an invocation's loops after 65,535 turns


@dataclass(frozen=True)
class Target:
    """What is known of a device when programs are compiled and kernels chosen.

    Attributes
    ----------
    units : int
        How many parts of a matrix product are worked on at once, as far as is known; 1 where that is no concern.
    fuse_from : int
        Elements from which the compiler joins elementwise launches.
    epilogues : bool
        Whether elementwise launches go into the matrix products that make their operands.
    rest : int
        For how many launches memory rests before it is used again: where several launches run at once, whoever gets it
        earlier waits for its last reader.
    """

    units: int = 1
    fuse_from: int = 1
    epilogues: bool = True
    rest: int = 0

    def split_inner(self, inner: int, rows: int, cols: int, count: int) -> int:
        """How long pieces of a product's inner axis should be (split-K), so that `count` products give all units work.

        For example ``Target(units=132).split_inner(4096, 64, 64, 1)`` is 512: one tile would leave 131 units idle, so
        8 pieces are made side by side and added up.
        """
        tiles = -(-rows // _TILE) * -(-cols // _TILE) * count
        pieces = 1
        if self.units > 1:
            pieces = max(1, min(2 * self.units // max(1, tiles), inner // _SHORTEST_PIECE, _MOST_PIECES))
        length = -(-inner // max(pieces, -(-inner // _LONGEST_SUM)))
        return max(1, -(-length // _TILE)) * _TILE  # whole quads, and whole slices of a tile

    def tiled_attention(self, features: int, times: int) -> bool:
        """Whether the attention kernels, which hold a tile of every head, take heads and sequences of this size."""
        return features <= _MOST_FEATURES and times <= _LONGEST_SEQUENCE
