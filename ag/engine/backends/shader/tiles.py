"""Choose the tiles of a product of matrices, by its shape and by what is known of the device.

Nothing is measured at run time, so a device always chooses alike, and results have the same bits in every run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ag.engine.backend import DeviceInfo
from ag.engine.backends.shader.manifest import Needs
from ag.errors import KernelError

_THIN = 2  # rows of a convolution's result up to which tiles would be nearly empty
_SKINNY = 8  # rows or columns up to which a product is bound by memory, and wants tiles of one kind
_BUSY, _MOST_TURNS = 512, 16  # elements per unit that keep it busy; elements that an invocation takes
# Where the driver does not report the number of units, as Intel's and Apple's do not:
_UNITS_PER_GIB = 4  # of discrete cards: RTX 4060 to 4090, RX 7600 to 7900 and Arc lie within a factor of 2 of it
_MOST_UNITS = {"NVIDIA": 132, "AMD": 304, "Intel": 32}
_OTHER_MOST = 32
_INTEGRATED_UNITS = 12

# Of columns that invocations share: up to how many elements one has alone; how many columns a workgroup has side by
# side, words of a sector at least; how many elements an invocation keeps of a column, at most, and loads at once of a
# longer one, that a workgroup cannot keep; and the invocations of a workgroup, at least and at most.
_SHORT, _SIDE_BY_SIDE, _OF_LONG = 32, (32, 16, 8), 8
_MOST_ADDED = 2048  # elements that an invocation adds up: long sums lose digits
_KEPT, _KEPT_ELSEWHERE, _FEW_KEPT = {"NVIDIA": 32, "AMD": 32}, 16, 4  # Intel's registers may be half as many
FEWEST_THREADS, _MOST_THREADS = 128, 1024

_LEAST_UNITS = 2  # of a card, even if it has one: `Target` takes 1 for a processor
_FEWEST_UNITS = 8  # a software driver has one, but may use several cores


@dataclass(frozen=True)
class Tile:
    """Sizes of a tile, in elements: the specialization constants of shaders/product.glsl."""

    rows: int  # of the result, made by one workgroup
    cols: int
    depth: int  # of the slices of both operands in shared memory
    down: int  # rows and columns of the part that one invocation makes; multiples of 4
    across: int
    shares: int = 1  # invocations that make the same part, each from its share of the inner axis

    @property
    def threads(self) -> int:
        return self.rows // self.down * (self.cols // self.across) * self.shares

    @property
    def shared_bytes(self) -> int:
        return 4 * self.depth * (self.rows + self.cols + 8)

    @property
    def needs(self) -> Needs:
        return Needs(self.threads, self.shared_bytes)

    def turned(self) -> Tile:
        return replace(self, rows=self.cols, cols=self.rows, down=self.across, across=self.down)

    def constants(self) -> dict[str, int]:
        return {"THREADS": self.threads, "TILE_ROWS": self.rows, "TILE_COLS": self.cols, "DEPTH": self.depth,
                "DOWN": self.down, "ACROSS": self.across, "SHARES": self.shares}


TILES = {
    "L": Tile(128, 128, 16, 8, 16),  # most products per word read, also of shared memory
    "L2": Tile(128, 128, 16, 8, 8),  # half the registers and twice the invocations
    "L8": Tile(128, 128, 8, 8, 8),  # in slices half as deep, of which fewer registers hold the next
    "M1": Tile(128, 64, 16, 8, 8),
    "M": Tile(64, 64, 16, 8, 8),
    "M4": Tile(64, 64, 16, 4, 4),  # four times the invocations
    "S": Tile(32, 32, 32, 4, 4),
    "S4": Tile(32, 32, 64, 4, 4, 4),  # where there are few: four invocations share an inner axis
    "V": Tile(32, 8, 64, 4, 4, 8),
}

class Rate(NamedTuple):
    """The speed at which a unit makes tiles of a kind."""

    many: float  # products per time of a unit with many tiles, relative to the best kind
    # Time of a single tile, relative to one of many: with few invocations, a unit waits for its memory.  The default
    # takes a unit to be busy with two tiles, and one to take three quarters of their time.
    alone: float = 1.5


# NVIDIA's were measured on an H100 (benchmarks/results/tiles_h100.json).  The others are guesses from the products per
# word of shared memory read.  Unknown devices get L2, which needs half the registers of L.  On RDNA 3 before Mesa 24,
# L, M1 and M take more registers than there are, and leave older chips a single wave; so does L2 in convolutions
# (tests/cards/test_radv.py).
_RATES = {
    "NVIDIA": {"L": Rate(1.0, 1.2), "M1": Rate(0.97, 1.4), "M4": Rate(0.84, 1.6), "S": Rate(0.58, 3.3),
               "S4": Rate(0.53, 1.7)},
    "AMD": {"L8": Rate(1.0), "M4": Rate(0.8), "S": Rate(0.4)},
    "AMD RDNA": {"L": Rate(1.0), "L2": Rate(0.95), "M1": Rate(0.9), "M": Rate(0.75), "S": Rate(0.4)},
    "Intel": {"L": Rate(0.95), "L2": Rate(1.0), "M1": Rate(0.95), "M": Rate(0.8), "S": Rate(0.5)},
    "Apple": {"L2": Rate(1.0), "M1": Rate(0.95), "M": Rate(0.85), "S": Rate(0.5)},
}
_RDNA = {  # chips by Mesa's names: its first version that compiles large tiles well for them
    r"NAVI[12]\d|VANGOGH|REMBRANDT|RAPHAEL_MENDOCINO|GFX103\d": 22,
    r"NAVI[34]\d|PHOENIX\w*|STRIX\w*|GFX1[12]\d\d\w*": 24,
}
_OTHER_RATES = {"L2": Rate(1.0), "M1": Rate(0.95), "M": Rate(0.85), "S": Rate(0.5)}
_MOLTENVK_1_3 = 10300
# Shared memory of a unit in bytes, which drivers do not report: of NVIDIA's cards for games since 2020, and of those
# for data centers.  Each unit has 65,536 registers of a word.
_ROOM, _LARGE_ROOM, _REGISTERS = 100 << 10, 164 << 10, 1 << 16
_LARGE = re.compile(r"\b([AHB][128]00|GH200|GB200)\b")


class Rule(Protocol):
    """A choice of tiles for the kernels whose files end in `suffix`, as of `Tiles`; plans are kept by rule."""

    @property
    def suffix(self) -> str: ...
    def choose(self, rows: int, cols: int, count: int) -> Any: ...

    def __hash__(self) -> int:
        return object.__hash__(self)

    def is_direct(self, rows: int) -> bool:
        return False

    def turns(self, n: int) -> int:
        return 1

    def held(self, most: int, each: int, shared: int, registers: int) -> int:
        return 0

    def columns(self, length: int, inner: int, outer: int, most: int) -> dict[str, int]:
        return {}


@dataclass(frozen=True)
class Tiles:
    units: int  # workgroups of a large tile that run at once (`units_of`)
    rates: tuple[tuple[str, Rate], ...]  # the kinds of tiles to choose from
    forced: str = ""  # the only kind, from AG_MATMUL_TILE
    fixed: bool = False  # use the kernels compiled for tiles of kind S alone
    # The most rows of a convolution made element by element: tiles of few rows would be nearly empty, and on a
    # processor the lookups of the taps cost most, for any number of rows.
    direct_rows: int = _THIN
    skinny: bool = True  # has the tiles for few rows or columns
    shared: int = 0  # bytes of shared memory of a workgroup, at most
    room: int = 0  # and of a unit
    threads: int = FEWEST_THREADS  # invocations of a workgroup, at most
    kept: int = _FEW_KEPT  # elements that an invocation keeps in registers, at most

    @cached_property
    def _hash(self) -> int:
        return hash((self.units, self.rates, self.forced, self.fixed, self.direct_rows, self.skinny, self.shared,
                     self.room, self.threads, self.kept))

    def __hash__(self) -> int:
        return self._hash  # hot path: every launch looks up its plan by it

    def is_direct(self, rows: int) -> bool:
        return rows <= self.direct_rows

    @property
    def suffix(self) -> str:
        return ".fixed" if self.fixed else ""

    def choose(self, rows: int, cols: int, count: int) -> Tile:
        """Return the tiles that finish `count` products first; all units work at once, in rounds."""
        name = "S" if self.fixed else self.forced or ("V" if self.skinny and min(rows, cols) <= _SKINNY else "")
        kinds = ((name, Rate(1.0)),) if name else self.rates
        return min((time, -tile.rows * tile.cols, tile) for time, tile in (
            self._timed(TILES[kind], rate, rows, cols, count) for kind, rate in kinds))[2]

    def turns(self, n: int) -> int:
        """Return how many of `n` elements an invocation computes, a power of two: starting workgroups takes time."""
        turns = max(1, min(n // (_BUSY * max(self.units, _FEWEST_UNITS)), _MOST_TURNS))
        return 1 << turns.bit_length() - 1

    def held(self, most: int, each: int, shared: int, registers: int) -> int:
        """Return how many of `most` operands of `each` bytes a workgroup of `shared` bytes keeps in shared memory."""
        def at_once(held: int) -> int:  # workgroups, which hide each other's waits; a third may be lost
            return min(_REGISTERS // registers, self.room // (shared + held * each))
        return next((n for n in range(most, 0, -1) if shared + n * each <= self.shared
                     and 3 * at_once(n) >= 2 * at_once(0) > 0), 0)

    def columns(self, length: int, inner: int, outer: int, most: int) -> dict[str, int]:
        """Return how invocations share columns whose elements are `inner` apart (shaders/columns.glsl).

        `most` elements may be kept.  Long columns that are few get more invocations, to keep the card busy.
        """
        if length <= _SHORT:
            return _columns(FEWEST_THREADS, 1, min(_power(length), most), length <= most)
        most, count = min(most, self.kept), max(1, outer * inner)
        least = _power(-(-length // most))  # invocations that keep a column
        wide = [(w, max(FEWEST_THREADS // w, least)) for w in _SIDE_BY_SIDE]
        if inner == 1:
            shares = max(_SIDE_BY_SIDE[-1], least)
            wide = [(max(1, FEWEST_THREADS // shares), shares)]
        fitting = [(w, shares) for w, shares in wide if w * shares <= self.threads and shares * most >= length]
        if not fitting:
            width = wide[-1][0]
            while width > 2 and (4 * count < width * self.units or self.threads // width * _MOST_ADDED < length):
                width //= 2
            shares = self.threads // width
            return _columns(width, shares, min(_OF_LONG, most), False)
        width, shares = next((x for x in fitting if count >= x[0] * self.units), fitting[-1])
        kept = _power(-(-length // shares))
        while kept > _FEW_KEPT and count * shares < _BUSY * self.units and 2 * width * shares <= self.threads:
            shares, kept = 2 * shares, kept // 2
        return _columns(width, shares, kept, True)

    def _timed(self, tile: Tile, rate: Rate, rows: int, cols: int, count: int) -> tuple[float, Tile]:
        if (rows < cols) != (tile.rows < tile.cols):
            tile = tile.turned()
        tiles = -(-rows // tile.rows) * -(-cols // tile.cols) * count
        rounds = max(-(-tiles // self.units), rate.alone)
        return rounds * tile.rows * tile.cols / rate.many, tile


def _power(n: int) -> int:
    """The power of two from `n` on."""
    return 1 << max(0, n - 1).bit_length()


def _columns(width: int, shares: int, loads: int, whole: bool) -> dict[str, int]:
    return {"columns": width, "shares": shares, "THREADS": width * shares, "loads": loads, "whole": int(whole)}


def tiles_of(device: DeviceInfo, fits: Callable[[Tile], bool] = lambda _tile: True, shared: int = sys.maxsize,
             threads: int = _MOST_THREADS) -> Tiles:
    """Return the rule for a device: the kinds of tiles that fit it, or S, which needs least; the rest as of `Tiles`."""
    forced = os.environ.get("AG_MATMUL_TILE", "")
    if forced and forced not in TILES:
        raise KernelError(f"AG_MATMUL_TILE is {forced!r}; it must be one of {', '.join(TILES)}, or not set.")
    if device.kind == "cpu":
        return Tiles(1, tuple(_OTHER_RATES.items()), forced, fixed=not forced, direct_rows=sys.maxsize, shared=shared,
                     room=sys.maxsize)
    rates = _RATES.get("AMD RDNA" if _has_large_tiles(device) else device.vendor, _OTHER_RATES)
    fitting = [(kind, rate) for kind, rate in rates.items() if fits(TILES[kind])] or [("S", rates["S"])]
    fixed = _keeps_defaults(device)
    return Tiles(units_of(device), tuple(fitting), forced, fixed, skinny=fits(TILES["V"]), shared=shared,
                 room=_room(device), threads=min(threads, FEWEST_THREADS if fixed else _MOST_THREADS),
                 kept=_KEPT.get(device.vendor, _KEPT_ELSEWHERE))


def _room(device: DeviceInfo) -> int:
    """Return the bytes of shared memory of a unit; 0 if unknown, and for AMD's, which lose waves (docs/kernels.md)."""
    if device.vendor != "NVIDIA":
        return 0
    return _LARGE_ROOM if _LARGE.search(device.description) else _ROOM


def units_of(device: DeviceInfo) -> int:
    """Return the number of multiprocessors, compute units or cores, by the driver or an estimate."""
    if device.units:
        return max(device.units, _LEAST_UNITS)
    most = _MOST_UNITS.get(device.vendor, _OTHER_MOST)
    units = min(most, _UNITS_PER_GIB * (device.memory_bytes >> 30)) if device.kind == "discrete" else 0
    return max(units, _INTEGRATED_UNITS)


def _keeps_defaults(device: DeviceInfo) -> bool:
    """Return whether arrays have a specialization constant's default size: on MoltenVK before 1.3."""
    parts = device.driver.split(".")  # 1.2.9 is numbered 10209, which appears as 0.2.2017
    if device.vendor != "Apple" or len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    major, minor, patch = map(int, parts)
    return (major << 22 | minor << 12 | patch) < _MOLTENVK_1_3


def has_few_registers(device: DeviceInfo) -> bool:
    """Return whether Mesa compiles large tiles, also attention's, badly for a chip of RDNA."""
    return _has_large_tiles(device) is False


def _has_large_tiles(device: DeviceInfo) -> bool | None:
    """Return whether Mesa compiles large tiles well for a chip of RDNA; None for other chips and drivers."""
    chip = re.search(r"\(RADV (\w+)\)", device.description)
    mesa = device.driver.partition(".")[0]
    if device.vendor != "AMD" or chip is None or not mesa.isdigit():
        return None
    return next((int(mesa) >= first for names, first in _RDNA.items() if re.fullmatch(names, chip[1])), None)
