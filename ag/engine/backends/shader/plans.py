"""Plan launches: the kernel, constants, push constants and grid of a primitive at certain shapes; all but addresses.

Plans follow the manifest of the shaders by name.  A rule of `tiles` chooses among kernels and kinds of tiles.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import copysign, prod
from typing import cast

import numpy as np

from ag.engine.backends.shader.manifest import BUILD, Entry, Needs, in_tiles, manifest, needs_of, refuse_stale
from ag.engine.backends.shader.tiles import Rule
from ag.engine.dtype import F32
from ag.engine.kernels.attention import MOST_SECONDS
from ag.engine.kernels.elementwise import Chain
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape, nbytes_of
from ag.errors import KernelError

_PLANS_KEPT = 4096
HELD_BYTES = 8192  # of an operand that is held, per block of features: shaders/attention.glsl
END = 1 << 31  # of dividends; divisors may be as large
MOST_GROUPS = 65535  # per axis of a grid, the least that any driver offers
_MULTIPLY_ADDS = 50e9  # per second; kernels on the integrated graphics of a laptop reach it: a fifth of its peak
_BYTES = 10e9  # per second; a third of two channels of DDR4

Grid = tuple[int, int, int]


def seconds_of(multiply_adds: float, nbytes: float) -> float:
    """Estimate the seconds of a launch on a slow integrated device."""
    return multiply_adds / _MULTIPLY_ADDS + nbytes / _BYTES


class Compiled(tuple[str, tuple[int, ...]]):
    """(file, spec), interned and hashed by identity, because it is a dict key on every launch."""

    __slots__ = ()
    __hash__ = object.__hash__


@cache
def _compiled(file: str, spec: tuple[int, ...]) -> Compiled:
    return Compiled((file, spec))


@dataclass(eq=False)
class Plan:
    """A launch of one primitive at certain shapes and parameters, but for the addresses."""

    kernel: str
    file: str  # its SPIR-V
    spec: tuple[int, ...]  # specialization constants, as 32-bit words
    words: tuple[int, ...]  # push constants, as 32-bit words; 0 in place of an offset
    offsets: tuple[tuple[int, int], ...]  # (position in `words`, number of the operand)
    grid: Grid  # workgroups; all 0 if the launch does nothing
    writes: tuple[bool, ...]  # by operand
    sizes: tuple[int, ...]  # bytes by operand; empty where some may be 16-bit
    work: int  # multiply-adds, if these take longer than reading and writing the operands
    needs: Needs  # of the device
    functions: frozenset[int] = frozenset()  # numbers of those that a chain applies
    pieces: int = 1  # how often it is dispatched, each time with another number
    piece_at: int = 0  # in this word

    def __post_init__(self) -> None:
        self.compiled = _compiled(self.file, self.spec)
        self.seconds = seconds_of(self.work, sum(self.sizes))  # if the sizes are known
        if self.pieces > 1:
            self.seconds = max(self.seconds, self.pieces * MOST_SECONDS)
        self.read, self.written = (tuple(i for i, w in enumerate(self.writes) if w == which) for which in (False, True))
        self._pack = struct.Struct(f"{len(self.words)}I").pack
        # Bytes before the offsets, their packer, and the bytes behind; None if offsets are scattered.
        self.around: tuple[bytes, Callable[..., bytes], bytes] | None = None
        first, count = self.offsets[0][0] if self.offsets else 0, len(self.writes)
        if self.offsets == tuple((first + i, i) for i in range(count)):
            block = self._pack(*self.words)
            self.around = block[: 4 * first], struct.Struct(f"{count}I").pack, block[4 * (first + count) :]

    def pushes(self, first: bytes) -> list[bytes]:
        """Return the push constants of each piece, given those of the first."""
        at = 4 * self.piece_at
        return [first] + [first[:at] + struct.pack("I", i) + first[at + 4 :] for i in range(1, self.pieces)]

    def push(self, operand_words: list[int]) -> bytes:
        """Pack the push constants, given every operand's offset in words."""
        if self.around is not None:
            before, pack, after = self.around
            return before + pack(*operand_words) + after
        words = list(self.words)
        for position, operand in self.offsets:
            words[position] = operand_words[operand]
        return self._pack(*words)


@dataclass(frozen=True)
class Product:
    """The products of a launch, on which the choice of tiles depends."""

    rows: int
    cols: int
    inner: int
    count: int
    looks: str  # nn, nt, tn or tt for matrices, by the transpose flags; taps for convolutions


def signs_of(params: Params) -> tuple[float, ...]:
    """Return the signs of all zeros among parameters and the numbers of a chain."""
    numbers = [*params.values(), *[number for *_, number in cast(Chain, params.get("chain", ()))]]
    return tuple([copysign(1.0, x) for x in numbers if isinstance(x, (float, np.floating)) and x == 0])


@lru_cache(maxsize=_PLANS_KEPT)
def planned(primitive: Primitive, shapes: tuple[Shape, ...], params: tuple[tuple[str, object], ...], tiles: Rule,
          aligned: bool, _signs: tuple[float, ...] = (), types: int = 0) -> Plan:  # `_signs` tell 0.0 from -0.0
    """Plan a launch; `aligned` operands begin at multiples of four words, `types` are as in shaders/numbers.glsl."""
    kernels = manifest()["kernels"]
    chain = cast(Chain, dict(params).get("chain", ()))
    for name in (primitive.name, *(function for function, *_ in chain)):
        if name not in kernels:
            raise KernelError(f"primitive {name} has no kernel; write shaders/{name}.comp, or {name}_of in "
                              f"shaders/functions.glsl, and {BUILD}.")
    values: Params = {**dict(params), **primitive.layout(*shapes, **dict(params))}
    name = _variant(primitive, values, tiles)
    entry = kernels[name]
    file = name + (tiles.suffix if entry["fixed"] else "") + (".halves" if types and entry["halves"] else "")
    refuse_stale(name, entry["sha256"])
    names = tuple(o["name"] for o in entry["operands"])
    if names != primitive.operands:
        raise KernelError(f"kernel {primitive.name} takes {names} and its primitive {primitive.operands}; "
                          f"the names and their order must be equal.")
    constants = {c["name"]: c["default"] for c in entry["spec"]}
    needs = needs_of(entry)
    if "TILE_ROWS" in constants:
        tile = tiles.choose(values["rows"], values["cols"], _count(entry, values))
        needs = tile.needs._replace(bindings=needs.bindings)
        values |= tile.constants()
    if "vector" in constants:
        values["vector"] = values["vector"] and aligned
    if "held" in constants:
        values["held"], needs = _held(values, needs, tiles)
    if "loads" in constants:
        values |= tiles.columns(values["length"], values["inner"], values["outer"], int(constants["loads"]))
        grown = values["THREADS"] // needs.threads  # as its shared memory does
        needs = needs._replace(threads=values["THREADS"], shared_bytes=needs.shared_bytes * grown)
    if "turns" in constants:
        values["turns"] = tiles.turns(values["n"])
    parts = {f"{name}_{i}": number for name, numbers in values.items() if isinstance(numbers, tuple)
             for i, number in enumerate(numbers)}
    values = {**constants, **parts, **steps(values), **values, "types": types}
    words: list[int] = []
    offsets = []
    piece_at = 0
    for member in entry["push"]:
        argument = member["name"]
        piece_at = len(words) if argument == "piece" else piece_at
        if argument.endswith("_at"):
            offsets.append((len(words), names.index(argument[:-3])))
            words.append(0)
        elif argument.startswith("by_"):
            words += divisors(values[argument[3:]])
        else:
            given = values[argument]
            words += [_word(v, member["type"]) for v in (given if isinstance(given, tuple) else (given,))]
    spec = tuple(_word(values[c["name"]], c["type"]) for c in entry["spec"])
    if entry["turns"]:
        needs = needs._replace(turns=_evaluate(entry["turns"], values))
    writes = tuple(o["writes"] for o in entry["operands"])
    sizes = () if "bfloat" in primitive.params or types else tuple([nbytes_of(shape, F32) for shape in shapes])
    work = _evaluate(entry["work"], values) if entry["work"] else 0
    functions = frozenset([values[f"op{k}"] >> 16 for k in range(1, len(chain) + 1)])
    return Plan(name, file, spec, tuple(words), tuple(offsets), _grid(entry, values), writes, sizes, work, needs,
                functions, values["pieces"] if piece_at else 1, piece_at)


def _held(values: Params, needs: Needs, tiles: Rule) -> tuple[int, Needs]:
    """Return how many operands' rows stay in shared memory, and the kernel's needs then."""
    each = HELD_BYTES * values["blocks"]
    registers = needs.threads * (40 + 16 * values["held"] * (1 + values["blocks"]))  # as Mesa 22 has them on RDNA 2
    held = tiles.held(values["held"], each, needs.shared_bytes, registers)
    return held, needs._replace(shared_bytes=needs.shared_bytes + held * each)


def _variant(primitive: Primitive, values: Params, tiles: Rule) -> str:
    """Name a primitive's kernel: its own, or the one element by element, as ``conv2d_direct_chain``."""
    product, chain, kind = primitive.name.partition("_chain")
    direct = f"{product}_direct{chain}{kind}"
    return direct if direct in manifest()["kernels"] and tiles.is_direct(values["rows"]) else primitive.name


def _count(entry: Entry, values: Params) -> int:
    axes = entry["grid"]["axes"]
    return _evaluate(axes[2], values) if len(axes) == 3 else 1


@lru_cache(maxsize=_PLANS_KEPT)
def product_of(primitive: Primitive, shapes: tuple[Shape, ...], params: tuple[tuple[str, object], ...],
               tiles: Rule) -> Product | None:
    """Return the product that a launch makes in tiles by this rule; None if it makes none."""
    entry = manifest()["kernels"].get(primitive.name)
    if entry is None or not in_tiles(entry):
        return None
    values: Params = {**dict(params), **primitive.layout(*shapes, **dict(params))}
    if _variant(primitive, values, tiles) != primitive.name:
        return None
    looks = "nt"[values["ta"]] + "nt"[values["tb"]] if "ta" in values else "taps"
    return Product(values["rows"], values["cols"], values["inner"], _count(entry, values), looks)


def _word(value: float, kind: str) -> int:
    if kind == "float":
        return int(np.float32(value).view(np.uint32))
    return int(value) & 0xFFFFFFFF


def _grid(entry: Entry, values: Params) -> Grid:
    axes = [_evaluate(axis, values) for axis in entry["grid"]["axes"]]
    if entry["grid"]["unit"] == "invocations":
        axes[0] = -(-axes[0] // entry["local_size"][0])
    if max(axes) > MOST_GROUPS:
        rows = -(-prod(axes) // MOST_GROUPS)  # kernels number workgroups in a line, so it may be folded
        axes = [-(-prod(axes) // rows), rows]
    x, y, z = (*axes, 1, 1)[:3]
    if max(x, y, z) > MOST_GROUPS:
        raise KernelError(f"a grid of {x} x {y} x {z} workgroups is too large; {MOST_GROUPS} per axis are "
                          f"possible. Use smaller tensors.")
    return (x, y, z) if x and y and z else (0, 0, 0)


def _evaluate(expression: str, values: Params) -> int:
    """Evaluate a product of names and integers with ceiling divisions, from left to right."""
    tokens = re.findall(r"\w+|[*/]", expression)
    result = 1
    operator = "*"
    for token in tokens:
        if token in "*/":
            operator = token
            continue
        number = int(token) if token.isdigit() else int(values[token])
        result = result * number if operator == "*" else -(-result // number)
    return result


def multiplier_and_shift(divisor: int) -> tuple[int, int]:
    """Return m - 2^32 and L, by which a kernel divides by d (shaders/quotient.glsl); 0, 0 for 0.

    n / d is `n m >> (32 + L)` for all 32-bit n (Granlund and Montgomery, 1994).  The first of m's 33 bits is 1, so a
    kernel adds n, without overflow below `END`.
    """
    if divisor == 0:
        return 0, 0
    shift = (divisor - 1).bit_length()
    return (1 << 32 + shift) // divisor + 1 - (1 << 32), shift


def divisors(numbers: int | tuple[int, ...]) -> list[int]:
    """Return the words of a kernel's ``by_<x>``: multiplier and shift of each number of x."""
    found = [multiplier_and_shift(int(d)) for d in (numbers if isinstance(numbers, tuple) else (numbers,))]
    return [word for pair in found for word in pair]


def steps(layout: Params) -> Params:
    """Return how operands are walked (shaders/walk.glsl), if the layout has axes: ``shape`` and each ``<x>_stride``.

    Sizes s and strides t count from the innermost axis.  With `q[k] = q[k - 1] / s[k - 1]`, the place along an axis is
    `q[k] - s[k] q[k + 1]`, so an operand moves by `t[k] - s[k - 1] t[k - 1]` for each q[k].
    """
    count = layout.get("ndim")
    if count is None:
        return {}
    most, sizes = len(layout["shape"]), layout["shape"][:count][::-1]
    pairs = [multiplier_and_shift(size) for size in sizes[:-1]]
    pairs += [(0, 0)] * (most - 1 - len(pairs))
    shifts = [sum(shift << 8 * i for i, (_, shift) in enumerate(pairs[k : k + 4])) for k in range(0, most - 1, 4)]
    found: Params = {"multipliers": tuple(multiplier for multiplier, _ in pairs), "shifts": tuple(shifts)}
    for name in [name for name in layout if name.endswith("_stride")]:
        strides = layout[name][:count][::-1]
        moved = [0, *(size * stride for size, stride in zip(sizes, strides, strict=True))]
        walked = [stride - before for stride, before in zip(strides, moved, strict=False)]
        found[name.replace("_stride", "_step")] = (*walked, *[0] * (most - count))
    return found
