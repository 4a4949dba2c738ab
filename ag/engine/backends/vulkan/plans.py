"""Plans: which kernel a primitive runs at certain shapes, with which constants, arguments and grid; all but addresses.

The shader is its own description: kernels_build.py read its operands, push constants, specialization constants and
grid into a manifest, and everything here follows the manifest by name.  No primitive is known by name; where one has
two kernels, or a kernel several kinds of tiles, a rule of `ag.engine.backends.vulkan.products.tiles` chooses.
`pipelines` asks for a plan per launch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from math import copysign, prod
from pathlib import Path
from typing import cast

import numpy as np

from ag.engine.backends.vulkan.kernel_files import BUILD, Entry, Manifest, check_files, read_manifest, refuse_stale
from ag.engine.backends.vulkan.kp_types import Properties
from ag.engine.backends.vulkan.limits import MOST_GROUPS as _MOST_GROUPS
from ag.engine.backends.vulkan.limits import Needs, lacking
from ag.engine.backends.vulkan.products.tiles import TILES, Rule
from ag.engine.backends.vulkan.quotients import divisors, steps
from ag.engine.backends.vulkan.stream.cost import seconds_of
from ag.engine.kernels.fused import Chain
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.errors import KernelError

__all__ = ["HELD_BYTES", "Compiled", "Plan", "Product", "check_kernels", "compiled_by", "kernel_state", "left_out",
           "manifest", "needs_of", "planned", "product_of", "products_hash", "signs_of", "spirv_of", "unfit"]

_SPV = Path(__file__).parent / "spv"
_PLANS_KEPT = 4096
HELD_BYTES = 8192  # of an operand that is held, per block of features: shaders/attention.glsl

Grid = tuple[int, int, int]


class Compiled(tuple[str, tuple[int, ...]]):
    """The file of a kernel and its specialization, which are looked up for every launch: as quickly as an object."""

    __slots__ = ()
    __hash__ = object.__hash__


@cache
def _compiled(file: str, spec: tuple[int, ...]) -> Compiled:
    """The one object of a pair, so that equal ones have the same hash."""
    return Compiled((file, spec))


@dataclass(frozen=True)
class Plan:
    """One primitive at certain shapes and parameters: everything but the addresses.

    Attributes
    ----------
    kernel : str
    file : str
        Its SPIR-V.
    spec : tuple of int
        Specialization constants, as 32-bit words.
    words : tuple of int
        Push constants, as 32-bit words; 0 where an offset goes.
    offsets : tuple of (int, int)
        (position in `words`, number of the operand) of every operand offset.
    grid : tuple of int
        Workgroups; all 0 if there is nothing to do.
    writes : tuple of bool
        Which operands are written.
    sizes : tuple of int
        Bytes of every operand; empty where some may be 16-bit, which their shapes do not say.
    work : int
        Multiply-adds, or as many as take as long, where they take more time than reading and writing the operands.
    needs : Needs
        What the device must have.
    """

    kernel: str
    file: str
    spec: tuple[int, ...]
    words: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    grid: Grid
    writes: tuple[bool, ...]
    sizes: tuple[int, ...]
    work: int
    needs: Needs

    @cached_property
    def compiled(self) -> Compiled:
        """File and specialization, the same object for all plans of which these are equal."""
        return _compiled(self.file, self.spec)

    @cached_property
    def seconds(self) -> float:
        """What a launch costs, if the plan knows the sizes of operands."""
        return seconds_of(self.work, sum(self.sizes))

    @cached_property
    def read(self) -> tuple[int, ...]:
        """The numbers of the operands that are read only."""
        return tuple(i for i, written in enumerate(self.writes) if not written)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The numbers of the operands that are written."""
        return tuple(i for i, written in enumerate(self.writes) if written)

    @cached_property
    def _pack(self) -> Callable[..., bytes]:
        return struct.Struct(f"{len(self.words)}I").pack

    @cached_property
    def around(self) -> tuple[bytes, Callable[..., bytes], bytes] | None:
        """What comes before all offsets and after them, if these follow each other in the order of the operands."""
        first, count = self.offsets[0][0] if self.offsets else 0, len(self.offsets)
        if self.offsets != tuple((first + i, i) for i in range(len(self.writes))):
            return None
        block = self._pack(*self.words)
        return block[: 4 * first], struct.Struct(f"{count}I").pack, block[4 * (first + count) :]

    def push(self, operand_words: list[int]) -> bytes:
        """The push-constant block, given every operand's offset in words."""
        if self.around is not None:
            before, pack, after = self.around
            return before + pack(*operand_words) + after
        words = list(self.words)
        for position, operand in self.offsets:
            words[position] = operand_words[operand]
        return self._pack(*words)


@dataclass(frozen=True)
class Product:
    """What the choice of tiles depends on: how many products a launch makes, and their sizes.

    Attributes
    ----------
    rows, cols, inner, count : int
    looks : str
        How the operands are found: ``"nn"``, ``"nt"``, ``"tn"`` and ``"tt"`` for matrices, after the transpose flags,
        ``"taps"`` for convolutions.
    """

    rows: int
    cols: int
    inner: int
    count: int
    looks: str


@lru_cache(maxsize=1)
def manifest() -> Manifest:
    """What kernels_build.py read from the shaders."""
    return read_manifest(_SPV)


def spirv_of(file: str) -> bytes:
    """The compiled kernel of a plan's file."""
    return (_SPV / f"{file}.spv").read_bytes()


def check_kernels() -> None:
    """Refuse an installation without kernels: a device that cannot run any does not count as one.

    Raises
    ------
    KernelError
        If the manifest or the file of a kernel is missing or broken.
    """
    check_files(_SPV)


def signs_of(params: Params) -> tuple[float, ...]:
    """The signs of all zeros among parameters, and among the numbers of a chain."""
    numbers = [*params.values(), *[number for *_, number in cast(Chain, params.get("chain", ()))]]
    return tuple([copysign(1.0, x) for x in numbers if isinstance(x, (float, np.floating)) and x == 0])


@lru_cache(maxsize=_PLANS_KEPT)
def planned(primitive: Primitive, shapes: tuple[Shape, ...], params: tuple[tuple[str, object], ...], tiles: Rule,
          aligned: bool, _signs: tuple[float, ...] = ()) -> Plan:
    """The plan of a launch; `aligned` is whether every operand begins at a multiple of four words.

    Zeros of either sign are equal and differ: `signs_of` tells plans of equal parameters apart.
    """
    kernels = manifest()["kernels"]
    chain = cast(Chain, dict(params).get("chain", ()))
    for name in (primitive.name, *(function for function, *_ in chain)):
        if name not in kernels:
            raise KernelError(f"Vulkan: primitive {name} has no kernel; write shaders/{name}.comp, or {name}_of in "
                              f"shaders/functions.glsl, and {BUILD}.")
    values: Params = {**dict(params), **primitive.layout(*shapes, **dict(params))}
    name = _variant(primitive, values, tiles)
    file = name + (tiles.suffix if kernels[name]["fixed"] else "")
    entry = kernels[kernel := file.partition(".")[0]]
    refuse_stale(_SPV, kernel, entry["sha256"])
    names = tuple(o["name"] for o in entry["operands"])
    if names != primitive.operands:
        raise KernelError(f"Vulkan: kernel {primitive.name} takes {names} and its primitive {primitive.operands}; "
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
    if "turns" in constants:
        values["turns"] = tiles.turns(values["n"])
    values = {**constants, **_parts(values), **steps(values), **values}
    words: list[int] = []
    offsets = []
    for member in entry["push"]:
        argument = member["name"]
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
    sizes = () if "bfloat" in primitive.params else tuple(4 * prod(shape) for shape in shapes)
    work = _evaluate(entry["work"], values) if entry["work"] else 0
    return Plan(name, file, spec, tuple(words), tuple(offsets), _grid(entry, values), writes, sizes, work,
                needs)


def _parts(values: Params) -> Params:
    """The numbers of every tuple, by its name and their places, as specialization constants have them: `kernel_0`."""
    return {f"{name}_{i}": number for name, numbers in values.items() if isinstance(numbers, tuple)
            for i, number in enumerate(numbers)}


def needs_of(entry: Entry) -> Needs:
    """What a kernel needs whose sizes are not those of a tile."""
    return Needs(prod(entry["local_size"]), entry["shared_bytes"], len(entry["operands"]))


def _held(values: Params, needs: Needs, tiles: Rule) -> tuple[int, Needs]:
    """How many operands' rows stay in shared memory, and what the kernel then needs."""
    each = HELD_BYTES * values["blocks"]
    registers = needs.threads * (40 + 16 * values["held"] * (1 + values["blocks"]))  # as Mesa 22 has them on RDNA 2
    held = tiles.held(values["held"], each, needs.shared_bytes, registers)
    return held, needs._replace(shared_bytes=needs.shared_bytes + held * each)


def _variant(primitive: Primitive, values: Params, tiles: Rule) -> str:
    """The kernel for a primitive: its own, or the one of the same operands that works element by element.

    That of ``conv2d`` is ``conv2d_direct``, and that of ``conv2d_chain``, the same with an epilogue, is
    ``conv2d_direct_chain``.
    """
    product, chain, kind = primitive.name.partition("_chain")
    direct = f"{product}_direct{chain}{kind}"
    return direct if direct in manifest()["kernels"] and tiles.is_direct(values["rows"]) else primitive.name


def _count(entry: Entry, values: Params) -> int:
    """How many products a kernel with tiles makes."""
    axes = entry["grid"]["axes"]
    return _evaluate(axes[2], values) if len(axes) == 3 else 1


def _in_tiles(entry: Entry) -> bool:
    return any(constant["name"] == "TILE_ROWS" for constant in entry["spec"])


@lru_cache(maxsize=_PLANS_KEPT)
def product_of(primitive: Primitive, shapes: tuple[Shape, ...], params: tuple[tuple[str, object], ...],
               tiles: Rule) -> Product | None:
    """The product of matrices that a launch makes in tiles, by this rule; None if it makes none."""
    entry = manifest()["kernels"].get(primitive.name)
    if entry is None or not _in_tiles(entry):
        return None
    values: Params = {**dict(params), **primitive.layout(*shapes, **dict(params))}
    if _variant(primitive, values, tiles) != primitive.name:
        return None
    looks = "nt"[values["ta"]] + "nt"[values["tb"]] if "ta" in values else "taps"
    return Product(values["rows"], values["cols"], values["inner"], _count(entry, values), looks)


def kernel_state(name: str) -> str:
    """Whether there is a kernel: ``"compiled"``, ``"left out"`` where the compiler did not know it, or ``"none"``."""
    if name in manifest()["kernels"]:
        return "compiled"
    return "left out" if name in manifest()["left_out"] else "none"


def left_out() -> list[str]:
    """Names of the kernels that the compiler did not know."""
    return manifest()["left_out"]


def unfit(limits: Properties) -> tuple[dict[str, str], int]:
    """What kernels need that a device does not have, by their names, and how many kernels there are in all.

    Of products, whose sizes are those of a kind of tiles, what they need is `tiles_of`'s matter.
    """
    kernels = manifest()["kernels"]
    lacks = {name: lacking(Needs(0, 0, len(entry["operands"])) if _in_tiles(entry) else needs_of(entry), limits)
             for name, entry in kernels.items()}
    return {name: what for name, what in lacks.items() if what}, len(kernels)


def compiled_by() -> str:
    """The compiler and optimizer that made the kernels, in one line."""
    return manifest()["compiler"]


def products_hash() -> str:
    """A hash over the compiled kernels that make products in tiles, and the kinds of tiles."""
    names = sorted(name for name, entry in manifest()["kernels"].items() if _in_tiles(entry))
    files = [path for name in names for path in sorted(_SPV.glob(f"{name}.*spv"))]
    return sha256(b"".join([repr(TILES).encode(), *(path.read_bytes() for path in files)])).hexdigest()


def _word(value: float, kind: str) -> int:
    """A value as the 32 bits the shader expects."""
    if kind == "float":
        return int(np.float32(value).view(np.uint32))
    return int(value) & 0xFFFFFFFF


def _grid(entry: Entry, values: Params) -> Grid:
    axes = [_evaluate(axis, values) for axis in entry["grid"]["axes"]]
    if entry["grid"]["unit"] == "invocations":
        axes[0] = -(-axes[0] // entry["local_size"][0])
    if max(axes) > _MOST_GROUPS:
        rows = -(-prod(axes) // _MOST_GROUPS)  # kernels number their workgroups in a line, which may be folded
        axes = [-(-prod(axes) // rows), rows]
    x, y, z = (*axes, 1, 1)[:3]
    if max(x, y, z) > _MOST_GROUPS:
        raise KernelError(f"Vulkan: a grid of {x} x {y} x {z} workgroups is too large; {_MOST_GROUPS} per axis are "
                          f"possible. Use smaller tensors.")
    return (x, y, z) if x and y and z else (0, 0, 0)


def _evaluate(expression: str, values: Params) -> int:
    """A product of names and integers with ceiling divisions, from left to right."""
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
