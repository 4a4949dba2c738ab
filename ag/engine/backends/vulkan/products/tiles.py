"""Which tiles a product of matrices is made in, if any: a choice by its shape and by what is known of the device.

shaders/product.glsl takes the sizes below as specialization constants.  Large tiles read memory least often and small
ones keep more of the device busy; `Tiles.choose` weighs the two.  Nothing here is measured at run time, so one device
always makes the same choice, and results are the same to the bit from run to run.  Kinds that do not fit the device
(shared memory, invocations) are not chosen from.
`ag.engine.backends.vulkan.plans` asks.
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
from ag.engine.backends.vulkan.limits import Needs
from ag.errors import KernelError

__all__ = ["TILES", "Rate", "Rule", "Tile", "Tiles", "has_few_registers", "tiles_of", "units_of"]

_THIN = 2  # rows of a convolution's result up to which tiles would be nearly empty
_SKINNY = 8  # rows or columns up to which a product is bound by memory, and wants tiles of one kind
_BUSY, _MOST_TURNS = 512, 16  # elements per unit that keep it busy; elements that an invocation takes
# Where the driver does not tell how many units a card has, as Intel's and Apple's do not:
_UNITS_PER_GIB = 4  # of discrete cards: RTX 4060 to 4090, RX 7600 to 7900 and Arc lie within a factor of 2 of it
_MOST_UNITS = {"NVIDIA": 132, "AMD": 304, "Intel": 32}
_OTHER_MOST = 32
_INTEGRATED_UNITS = 12

_LEAST_UNITS = 2  # of a card, even if it has one: `Target` takes 1 for a processor
_FEWEST_UNITS = 8  # a software driver has one, but may use several cores


@dataclass(frozen=True)
class Tile:
    """Sizes of a tile, in elements.

    Attributes
    ----------
    rows, cols : int
        Of the result, made by one workgroup.
    depth : int
        Of the slices of both operands in shared memory.
    down, across : int
        Of the part that one invocation makes; multiples of 4.
    shares : int
        How many invocations make the same part, each from its share of the inner axis.
    """

    rows: int
    cols: int
    depth: int
    down: int
    across: int
    shares: int = 1

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""
        return self.rows // self.down * (self.cols // self.across) * self.shares

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        return 4 * self.depth * (self.rows + self.cols + 8)

    @property
    def needs(self) -> Needs:
        """What the device must have."""
        return Needs(self.threads, self.shared_bytes)

    def turned(self) -> Tile:
        """The same for the transposed result."""
        return replace(self, rows=self.cols, cols=self.rows, down=self.across, across=self.down)

    def constants(self) -> dict[str, int]:
        """The specialization constants of shaders/tiles.glsl."""
        return {"THREADS": self.threads, "TILE_ROWS": self.rows, "TILE_COLS": self.cols, "DEPTH": self.depth,
                "DOWN": self.down, "ACROSS": self.across, "SHARES": self.shares}


TILES = {
    "L": Tile(128, 128, 16, 8, 16),  # most products per word read, of shared memory, too
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
    """How quickly a unit makes tiles of a kind.

    Attributes
    ----------
    many : float
        Products per time, relative to the best kind, of a unit that has many tiles to make.
    alone : float
        How much longer a single tile takes than one of many: with few invocations, a unit waits for its memory.  Where
        that was not measured, a unit is taken to be busy with two tiles, and one takes three quarters of their time.
    """

    many: float
    alone: float = 1.5


# NVIDIA's were measured on an H100 (benchmarks/results/tiles_h100.json).  The others are guesses from the products made
# per word of shared memory read, to be replaced by measurements on each vendor's cards.  Devices that are not known get
# L2, which needs half the registers of L.  What Mesa's compiler makes of each kind, tests/cards/test_radv.py looks at:
# L, M1 and M take more registers than it finds on RDNA 3 before Mesa 24, and leave older chips a single wave, and so
# does L2 in convolutions.
_RATES = {
    "NVIDIA": {"L": Rate(1.0, 1.2), "M1": Rate(0.97, 1.4), "M4": Rate(0.84, 1.6), "S": Rate(0.58, 3.3),
               "S4": Rate(0.53, 1.7)},
    "AMD": {"L8": Rate(1.0), "M4": Rate(0.8), "S": Rate(0.4)},
    "AMD RDNA": {"L": Rate(1.0), "L2": Rate(0.95), "M1": Rate(0.9), "M": Rate(0.75), "S": Rate(0.4)},
    "Intel": {"L": Rate(0.95), "L2": Rate(1.0), "M1": Rate(0.95), "M": Rate(0.8), "S": Rate(0.5)},
    "Apple": {"L2": Rate(1.0), "M1": Rate(0.95), "M": Rate(0.85), "S": Rate(0.5)},
}
_RDNA = {  # chips in the words of Mesa's driver: the first of its versions that compiles the large tiles well for them
    r"NAVI[12]\d|VANGOGH|REMBRANDT|RAPHAEL_MENDOCINO|GFX103\d": 22,
    r"NAVI[34]\d|PHOENIX\w*|STRIX\w*|GFX1[12]\d\d\w*": 24,
}
_OTHER_RATES = {"L2": Rate(1.0), "M1": Rate(0.95), "M": Rate(0.85), "S": Rate(0.5)}
_MOLTENVK_1_3 = 10300
# Bytes of shared memory that the workgroups of a unit divide, which no driver tells: of NVIDIA's cards for games since
# 2020, and of those for data centers.  A unit of theirs has registers for 65,536 words.
_ROOM, _LARGE_ROOM, _REGISTERS = 100 << 10, 164 << 10, 1 << 16
_LARGE = re.compile(r"\b([AHB][128]00|GH200|GB200)\b")


class Rule(Protocol):
    """Chooses tiles, for the kernels whose names end in `suffix`."""

    @property
    def suffix(self) -> str:
        """What follows the primitive's name in the name of the file with the kernel."""

    def is_direct(self, rows: int) -> bool:
        """Whether to make a product of so many rows element by element, by a kernel without tiles, if there is one."""

    def choose(self, rows: int, cols: int, count: int) -> Any:
        """Tiles for `count` products of so many rows and columns each."""

    def turns(self, n: int) -> int:
        """How many elements an invocation takes, of `n` that are computed one by one."""

    def held(self, most: int, each: int, shared: int, registers: int) -> int:
        """How many of `most` operands of `each` bytes a workgroup holds, which else has `shared` bytes."""

    def __hash__(self) -> int:
        """Plans are kept by rule."""


@dataclass(frozen=True)
class Tiles:
    """The rule of one device.

    Attributes
    ----------
    units : int
        Workgroups of a large tile that are worked on at once, as `units_of` has them.
    rates : tuple of (str, Rate)
        The kinds of tiles to choose from.
    forced : str
        The only kind to use, from the environment variable AG_MATMUL_TILE; usually empty.
    fixed : bool
        Whether to use the kernels that are compiled for tiles of kind S alone.
    direct_rows : int
        Up to how many rows a convolution is made element by element: in few rows tiles would be nearly empty, and on a
        processor the lookups of the taps cost most, however many rows there are.
    skinny : bool
        Whether there are the tiles for few rows or columns.
    shared, room : int
        Bytes of shared memory that a workgroup may have, and that a unit has.
    """

    units: int
    rates: tuple[tuple[str, Rate], ...]
    forced: str = ""
    fixed: bool = False
    direct_rows: int = _THIN
    skinny: bool = True
    shared: int = 0
    room: int = 0

    @cached_property
    def _hash(self) -> int:
        return hash((self.units, self.rates, self.forced, self.fixed, self.direct_rows, self.skinny, self.shared,
                     self.room))

    def __hash__(self) -> int:
        """Every launch looks up its plan by it."""
        return self._hash

    def is_direct(self, rows: int) -> bool:
        """Whether to make a product of so many rows element by element, by a kernel without tiles, if there is one."""
        return rows <= self.direct_rows

    @property
    def suffix(self) -> str:
        """What follows the primitive's name in the name of the file with the kernel."""
        return ".fixed" if self.fixed else ""

    def choose(self, rows: int, cols: int, count: int) -> Tile:
        """Tiles for `count` products of so many rows and columns each: those that should be finished first.

        All units work on tiles at once, so time goes in rounds; in the last one some units may have nothing to do,
        tiles may stand over the edge, and a round alone takes longer.  For example, 512 x 512 elements on 132 units are
        16 tiles of kind L, and one round of 128 * 128 * 1.2 / 1.0 = 19,700 products per step of the inner axis; in kind
        S4 they are 256, and two rounds of 32 * 32 / 0.53 = 3,900 together.
        """
        name = "S" if self.fixed else self.forced or ("V" if self.skinny and min(rows, cols) <= _SKINNY else "")
        kinds = ((name, Rate(1.0)),) if name else self.rates
        return min((time, -tile.rows * tile.cols, tile) for time, tile in (
            self._timed(TILES[kind], rate, rows, cols, count) for kind, rate in kinds))[2]

    def turns(self, n: int) -> int:
        """How many elements an invocation takes, of `n` that are computed one by one; a power of two.

        A card starts workgroups one after the other, about one per nanosecond, so that many small ones would leave its
        memory idle; a software driver takes longer to start one than to compute it.
        """
        turns = max(1, min(n // (_BUSY * max(self.units, _FEWEST_UNITS)), _MOST_TURNS))
        return 1 << turns.bit_length() - 1

    def held(self, most: int, each: int, shared: int, registers: int) -> int:
        """How many of `most` operands of `each` bytes a workgroup holds in shared memory, not to load them again.

        A workgroup else has `shared` bytes and, in words, `registers`.  It may cost a unit a third of the workgroups
        that it works on at once, which hide each other's waits; where registers are what they lack, it costs none.  For
        example, 12,288 registers leave room for 5 workgroups of 14,848 bytes in 164 KiB, and so do 31,232 bytes; of
        100 KiB, which 3 of these would fill, nothing is held.
        """
        def at_once(held: int) -> int:
            return min(_REGISTERS // registers, self.room // (shared + held * each))
        return next((n for n in range(most, 0, -1) if shared + n * each <= self.shared
                     and 3 * at_once(n) >= 2 * at_once(0) > 0), 0)

    def _timed(self, tile: Tile, rate: Rate, rows: int, cols: int, count: int) -> tuple[float, Tile]:
        if (rows < cols) != (tile.rows < tile.cols):
            tile = tile.turned()
        tiles = -(-rows // tile.rows) * -(-cols // tile.cols) * count
        rounds = max(-(-tiles // self.units), rate.alone)
        return rounds * tile.rows * tile.cols / rate.many, tile


def _all_fit(tile: Tile) -> bool:
    return True


def tiles_of(device: DeviceInfo, fits: Callable[[Tile], bool] = _all_fit, shared: int = sys.maxsize) -> Tiles:
    """The rule for a device, of the kinds of tiles that fit it; if none does, of kind S, which needs least.

    `shared` is how many bytes of shared memory a workgroup may have.  Of cards other than NVIDIA's nothing is held in
    it: AMD's would lose more waves than that (docs/kernels.md), and of the others too little is known.

    Raises
    ------
    KernelError
        If AG_MATMUL_TILE names no kind of tiles.
    """
    forced = os.environ.get("AG_MATMUL_TILE", "")
    if forced and forced not in TILES:
        raise KernelError(f"AG_MATMUL_TILE is {forced!r}; it must be one of {', '.join(TILES)}, or not set.")
    if device.kind == "cpu":
        return Tiles(1, tuple(_OTHER_RATES.items()), forced, fixed=not forced, direct_rows=sys.maxsize, shared=shared,
                     room=sys.maxsize)
    rates = _RATES.get(_family(device), _OTHER_RATES)
    fitting = [(kind, rate) for kind, rate in rates.items() if fits(TILES[kind])] or [("S", rates["S"])]
    return Tiles(units_of(device), tuple(fitting), forced, _keeps_defaults(device), skinny=fits(TILES["V"]),
                 shared=shared, room=_room(device))


def _room(device: DeviceInfo) -> int:
    """How many bytes of shared memory a unit has, where that is known; else 0."""
    if device.vendor != "NVIDIA":
        return 0
    return _LARGE_ROOM if _LARGE.search(device.description) else _ROOM


def units_of(device: DeviceInfo) -> int:
    """How many units a card has: multiprocessors, compute units or cores, as its driver says; else an estimate."""
    if device.units:
        return max(device.units, _LEAST_UNITS)
    most = _MOST_UNITS.get(device.vendor, _OTHER_MOST)
    units = min(most, _UNITS_PER_GIB * (device.memory_bytes >> 30)) if device.kind == "discrete" else 0
    return max(units, _INTEGRATED_UNITS)


def _keeps_defaults(device: DeviceInfo) -> bool:
    """Whether an array whose size is a specialization constant has the constant's default: MoltenVK before 1.3.

    It counts its versions in decimal, 1.2.9 as 10209, and the number comes in the form of Vulkan's, as 0.2.2017.
    """
    parts = device.driver.split(".")
    if device.vendor != "Apple" or len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    major, minor, patch = map(int, parts)
    return (major << 22 | minor << 12 | patch) < _MOLTENVK_1_3


def has_few_registers(device: DeviceInfo) -> bool:
    """Whether it is a chip of RDNA with a Mesa that does not compile large tiles well for it, attention's neither."""
    return _has_large_tiles(device) is False


def _family(device: DeviceInfo) -> str:
    """Whose table a device has: its vendor's, or that of an AMD chip whose driver says that it is one of RDNA."""
    return "AMD RDNA" if _has_large_tiles(device) else device.vendor


def _has_large_tiles(device: DeviceInfo) -> bool | None:
    """Whether Mesa compiles large tiles well for a chip of RDNA; None if it is none, or the driver is another."""
    chip = re.search(r"\(RADV (\w+)\)", device.description)
    mesa = device.driver.partition(".")[0]
    if device.vendor != "AMD" or chip is None or not mesa.isdigit():
        return None
    return next((int(mesa) >= first for names, first in _RDNA.items() if re.fullmatch(names, chip[1])), None)
