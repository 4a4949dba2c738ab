"""The compilation target: what a device asks of the compiler, and of ops that can compute in several ways.

The answers depend on sizes alone, so that a device always adds up in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

# Longer sums are made in pieces: they keep more digits, and a driver ends an invocation's loops after 65,535 turns.
_LONGEST_SUM = 1 << 15
_SHORTEST_PIECE = 64  # a slice of a tile; pieces so short pay on an H100 (benchmarks/results/pieces_h100.json)
_MOST_PIECES = 128
_PER_UNIT = 4  # pieces that a unit is to have: while one waits for its memory, others compute
ONE_PIECE = 1023  # the longest inner axis that no device cuts: below, adding up costs more than it gains
_LONGEST_ROW, _ROW_PIECE = 1 << 16, 1 << 14  # rows that every device adds up in pieces, and their length
_SHORTEST_ROW_PIECE = 1 << 12  # below, combining pieces costs more than it gains
_TILE = 64  # rows and columns of the part of a product that one unit of a device makes at a time, about
# Of a convolution's weight gradient, which is made in large tiles: the time of a tile that a unit has alone, relative
# to one of many, as on an H100 (ag/engine/backends/shader/tiles.py); the shortest piece; and what writing and adding up
# a piece takes, relative to a multiply-add of its elements.
_LARGE_TILE, _ALONE, _SHORTEST_PLACES, _ADDING = 128, 1.2, 256, 53
_MOST_FEATURES = 128  # of an attention head, in the kernels that hold a tile of it
# Words that lie a batch apart are a sector of 8 words each for a card, or of 2 samples two sectors where one would do.
# Putting samples first costs about three sectors per word, and attention reads each once per 32 to 64 times: below, it
# does not pay, as far as can be counted (tests/cards/sectors.py), not yet measured.
_SECTOR, _FEWEST_TIMES, _FEWEST_TOO_MANY = 8, 128, 384


class Target(NamedTuple):
    """A device, as compiler and ops see it when they choose among primitives."""

    # how many parts of a matrix product are worked on at once: multiprocessors, compute units or cores, as the driver
    # reports or by an estimate; 1 where that is no concern
    units: int = 1
    fuse_from: int = 1  # elements from which the compiler joins elementwise launches
    epilogues: bool = True  # whether elementwise launches go into the matrix products that make their operands
    # for how many launches memory rests before it is used again: where several launches run at once, whoever gets it
    # earlier waits for its last reader
    rest: int = 0
    # how many numbers a second factor of `sample_matmul` may have: samples of larger ones are moved to the front before
    sample_factor: int = 1 << 13
    # of the attention kernels: to how many times an invocation's loops may go; 0 where the kernels do not fit
    longest_sequence: int = sys.maxsize
    terms: bool = True  # whether those of attention with terms fit
    halves: Mapping[str, tuple[bool, ...]] = MappingProxyType({})  # `Device.halves`
    # whether the driver's compiler finds so few that attention's gradient would keep much of a large head in memory
    few_registers: bool = False

    def split_inner(self, inner: int, rows: int, cols: int, count: int) -> int:
        """Split-K: return the length of the pieces of the inner axis of `count` products, four for every unit."""
        tiles = -(-rows // _TILE) * -(-cols // _TILE) * count
        pieces = 1
        if self.units > 1 and inner > ONE_PIECE:
            pieces = max(1, min(_PER_UNIT * self.units // max(1, tiles), inner // _SHORTEST_PIECE, _MOST_PIECES))
        length = -(-inner // max(pieces, -(-inner // _LONGEST_SUM)))
        return max(1, -(-length // _TILE)) * _TILE  # whole quads, and whole slices of a tile

    def split_places(self, inner: int, rows: int, cols: int, count: int) -> int:
        """Split-K of a weight gradient: as `split_inner`, but in several times as many pieces, to fill all units."""
        length = self.split_inner(inner, rows, cols, count)
        if self.units == 1 or inner <= ONE_PIECE:
            return length
        fewest = -(-inner // length)
        tiles = -(-rows // _LARGE_TILE) * -(-cols // _LARGE_TILE) * count / self.units

        def time(pieces: int) -> float:
            return max(ceil(tiles * pieces), _ALONE) / (tiles * pieces) + pieces * _ADDING / inner

        most = max(fewest, min(max(8, 4 * fewest), inner // _SHORTEST_PLACES, _MOST_PIECES))
        pieces = min(range(fewest, most + 1), key=time)
        return -(-inner // (pieces * _TILE)) * _TILE

    def split_row(self, length: int, rows: int) -> int:
        """The length of the pieces of long rows, one for every unit, unless they would be too short."""
        chunk = length if length <= _LONGEST_ROW else _ROW_PIECE
        if self.units > 1:
            pieces = min(self.units // max(1, rows), length // _SHORTEST_ROW_PIECE)
            chunk = min(chunk, -(-length // max(1, pieces)))
        return max(1, chunk)

    def tiled_attention(self, features: int, times: int, dropped: bool = False) -> bool:
        """Return whether the kernels' registers hold such heads; larger ones are composed of products."""
        share = (4 if dropped else 2) if self.few_registers else 1
        return features <= _MOST_FEATURES // share and times <= self.longest_sequence

    def wide_attention(self, features: int, times: int) -> bool:
        """Return whether the kernels of attention with terms hold such heads, in parts of 128 features."""
        return self.terms and times * -(-features // 128) <= self.longest_sequence and not self.few_registers

    def samples_first(self, samples: int, times: int) -> bool:
        """Return whether attention puts samples before times, so that neighbours lie side by side."""
        too_many = (min(samples, _SECTOR) - 1) * times
        return self.units > 1 and times >= _FEWEST_TIMES and too_many >= _FEWEST_TOO_MANY
