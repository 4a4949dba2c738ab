"""Kernels: which SPIR-V a primitive runs, how its arguments are packed, and the Algorithms made from it.

The shader is its own description: kernels_build.py read its operands, push constants, specialization constants and
grid into a manifest, and everything here follows the manifest by name.  A pipeline is made once per kernel and
specialization, and an Algorithm (a pipeline bound to segments) once per tuple of segments, never per launch.  No
primitive is known by name, but those that others can do without; where one has two kernels, or a kernel several kinds
of tiles, a rule of `ag.engine.backends.vulkan.products.tiles` chooses.  The backend asks for a plan per launch.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import cast

import numpy as np

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.kernel_files import BUILD, Entry, Manifest, check_files, read_manifest, refuse_stale
from ag.engine.backends.vulkan.kp_types import Algorithm, Manager, Properties, Tensor
from ag.engine.backends.vulkan.limits import MOST_GROUPS as _MOST_GROUPS
from ag.engine.backends.vulkan.limits import Needs, lacking, most_turns
from ag.engine.backends.vulkan.loader import kompute
from ag.engine.backends.vulkan.products.tiles import TILES, Rule, tiles_of
from ag.engine.backends.vulkan.spirv.addresses import with_addresses
from ag.engine.backends.vulkan.spirv.float_modes import modes_of, with_modes
from ag.engine.kernels.fused import Chain
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.engine.target import Target
from ag.errors import KernelError

__all__ = ["Kernels", "Plan", "Product", "check_kernels", "compiled_by", "kernel_state", "left_out", "product_of",
           "products_hash", "unfit"]

_SPV = Path(__file__).parent / "spv"
_PLANS_KEPT = 4096
_TURNS_PER_COLUMN = 13  # of attention: at 128 features, measured where loops are counted
# What ops and the compiler can do without: `Target` tells them.
_DISPENSABLE = {"heads": ("attention", "attention_grad"), "chains": ("fused", "fused_pair"),
                "epilogues": ("matmul_chain", "matmul_chain_pair", "conv2d_chain", "conv2d_input_grad_chain")}

Grid = tuple[int, int, int]


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
        Multiply-adds, where they take more time than reading and writing the operands.
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
    def _pack(self) -> Callable[..., bytes]:
        return struct.Struct(f"{len(self.words)}I").pack

    def push(self, operand_words: list[int]) -> bytes:
        """The push-constant block, given every operand's offset in words."""
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
def _manifest() -> Manifest:
    return read_manifest(_SPV)


def check_kernels() -> None:
    """Refuse an installation without kernels: a device that cannot run any does not count as one.

    Raises
    ------
    KernelError
        If the manifest or the file of a kernel is missing or broken.
    """
    check_files(_SPV)


@lru_cache(maxsize=_PLANS_KEPT)
def _plan(primitive: Primitive, shapes: tuple[Shape, ...], params: tuple[tuple[str, object], ...], tiles: Rule,
          aligned: bool) -> Plan:
    kernels = _manifest()["kernels"]
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
    needs = _needs(entry)
    if "TILE_ROWS" in constants:
        tile = tiles.choose(values["rows"], values["cols"], _count(entry, values))
        needs = needs._replace(threads=tile.threads, shared_bytes=tile.shared_bytes)
        values |= tile.constants()
        values["vector"] = values["vector"] and aligned
    if "turns" in constants:
        values["turns"] = tiles.turns(values["n"])
    values = {**constants, **values}
    words: list[int] = []
    offsets = []
    for member in entry["push"]:
        argument = member["name"]
        if argument.endswith("_at"):
            offsets.append((len(words), names.index(argument[:-3])))
            words.append(0)
        else:
            numbers = values[argument] if member["count"] > 1 else (values[argument],)
            words += [_word(v, member["type"]) for v in numbers]
    spec = tuple(_word(values[c["name"]], c["type"]) for c in entry["spec"])
    if entry["turns"]:
        needs = needs._replace(turns=_evaluate(entry["turns"], values))
    writes = tuple(o["writes"] for o in entry["operands"])
    sizes = () if "bfloat" in primitive.params else tuple(4 * prod(shape) for shape in shapes)
    work = _evaluate(entry["work"], values) if entry["work"] else 0
    return Plan(name, file, spec, tuple(words), tuple(offsets), _grid(entry, values), writes, sizes, work,
                needs)


def _needs(entry: Entry) -> Needs:
    """What a kernel needs whose sizes are not those of a tile."""
    return Needs(prod(entry["local_size"]), entry["shared_bytes"], len(entry["operands"]))


def _variant(primitive: Primitive, values: Params, tiles: Rule) -> str:
    """The kernel for a primitive: its own, or the one of the same operands that works element by element.

    That of ``conv2d`` is ``conv2d_direct``, and that of ``conv2d_chain``, the same with an epilogue, is
    ``conv2d_direct_chain``.
    """
    product, chain, kind = primitive.name.partition("_chain")
    direct = f"{product}_direct{chain}{kind}"
    return direct if direct in _manifest()["kernels"] and tiles.is_direct(values["rows"]) else primitive.name


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
    entry = _manifest()["kernels"].get(primitive.name)
    if entry is None or not _in_tiles(entry):
        return None
    values: Params = {**dict(params), **primitive.layout(*shapes, **dict(params))}
    if _variant(primitive, values, tiles) != primitive.name:
        return None
    looks = "nt"[values["ta"]] + "nt"[values["tb"]] if "ta" in values else "taps"
    return Product(values["rows"], values["cols"], values["inner"], _count(entry, values), looks)


def kernel_state(name: str) -> str:
    """Whether there is a kernel: ``"compiled"``, ``"left out"`` where the compiler did not know it, or ``"none"``."""
    if name in _manifest()["kernels"]:
        return "compiled"
    return "left out" if name in _manifest()["left_out"] else "none"


def left_out() -> list[str]:
    """Names of the kernels that the compiler did not know."""
    return _manifest()["left_out"]


def unfit(limits: Properties) -> tuple[dict[str, str], int]:
    """What kernels need that a device does not have, by their names, and how many kernels there are in all.

    Of products, whose sizes are those of a kind of tiles, what they need is `tiles_of`'s matter.
    """
    kernels = _manifest()["kernels"]
    lacks = {name: lacking(Needs(0, 0, len(entry["operands"])) if _in_tiles(entry) else _needs(entry), limits)
             for name, entry in kernels.items()}
    return {name: what for name, what in lacks.items() if what}, len(kernels)


def compiled_by() -> str:
    """The compiler and optimizer that made the kernels, in one line."""
    return _manifest()["compiler"]


def products_hash() -> str:
    """A hash over the compiled kernels that make products in tiles, and the kinds of tiles."""
    names = sorted(name for name, entry in _manifest()["kernels"].items() if _in_tiles(entry))
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


class Kernels:
    """The Algorithms of one device.

    Parameters
    ----------
    manager : kp.Manager
    device : DeviceInfo
        Decides the tiles of products of matrices.

    Attributes
    ----------
    covered : int
        Bytes of a segment that a descriptor covers at most; larger ones are found by their address.
    """

    def __init__(self, manager: Manager, device: DeviceInfo) -> None:
        self._manager, self._where = manager, f"{device.name} ({device.description})"
        self._limits = limits = manager.get_device_properties()
        self.tiles = tiles_of(device, lambda tile: not lacking(Needs(tile.threads, tile.shared_bytes), limits))
        self.covered = limits["max_storage_buffer_range"]
        self._modes = [modes_of(limits, multiplies) for multiplies in (False, True)]
        self._algorithms: dict[tuple[str, tuple[int, ...]], dict[tuple[int, ...], Algorithm]] = {}  # by segments
        self._pipelines: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Algorithm] = {}  # the first with each
        self._addresses: dict[int, Tensor] = {}  # of segments that no descriptor covers
        self._spirv: dict[tuple[str, tuple[int, ...]], bytes] = {}

    def target(self, rest: int) -> Target:
        """What the device wants of the compiler and of ops: they do without kernels that do not fit it."""
        kernels = _manifest()["kernels"]
        fits = {what: not any(lacking(_needs(kernels[name]), self._limits) for name in names if name in kernels)
                for what, names in _DISPENSABLE.items()}
        return Target(units=self.tiles.units, fuse_from=1 if fits["chains"] else sys.maxsize,
                      epilogues=fits["epilogues"], rest=rest,
                      longest_sequence=fits["heads"] and most_turns(self._limits) // _TURNS_PER_COLUMN)

    def plan(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params, words: list[int],
             tiles: Rule | None = None) -> Plan:
        """How to run a primitive at these shapes, on operands with these offsets in words; `tiles` replace the rule."""
        bits = 0
        for w in words:
            bits |= w
        plan = _plan(primitive, shapes, tuple(params.items()), tiles or self.tiles, not bits & 3)
        if plan.needs.turns:  # these depend on the shapes, all else on the pipeline
            self._refuse_what_does_not_fit(plan)
        return plan

    def algorithm(self, plan: Plan, segments: tuple[int, ...], of_arena: Sequence[tuple[int, Tensor]]) -> Algorithm:
        """The Algorithm for a plan, bound to the segments its operands lie in."""
        bound = self._algorithms.setdefault((plan.file, plan.spec), {})
        found = bound.get(segments)
        if found is None:
            far = tuple([i for i, s in enumerate(segments) if of_arena[s][0] > self.covered])
            tensors = [self._address(s, of_arena[s][1]) if i in far else of_arena[s][1]
                       for i, s in enumerate(segments)]
            key = plan.file, plan.spec, far
            made = self._pipelines.get(key)
            if made is None:
                found = self._pipelines[key] = self._pipeline(plan, tensors, far)
            else:
                found = self._manager.bound(made, tensors)
            bound[segments] = found
        return found

    def _address(self, segment: int, tensor: Tensor) -> Tensor:
        """What is bound in the place of a segment: eight bytes, its address."""
        if segment not in self._addresses:
            address = self._manager.address(tensor)
            self._addresses[segment] = self._manager.tensor_t(np.array([address], "<u8").view(np.uint32),
                                                              kompute().TensorTypes.host)
        return self._addresses[segment]

    def _refuse_what_does_not_fit(self, plan: Plan) -> None:
        if lacks := lacking(plan.needs, self._limits):
            raise KernelError(f"Vulkan: kernel {plan.kernel} does not fit {self._where}: it needs {lacks}; run it on "
                              f"another device, such as 'cpu'.")

    def _pipeline(self, plan: Plan, tensors: list[Tensor], far: tuple[int, ...]) -> Algorithm:
        """The first Algorithm of a kernel and specialization, with some operands found by address: the driver compiles
        it.
        """
        self._refuse_what_does_not_fit(plan)
        spirv = self._spirv.get((plan.file, far))
        if spirv is None:
            spirv = (_SPV / f"{plan.file}.spv").read_bytes()
            entry = _manifest()["kernels"][plan.file.partition(".")[0]]
            if entry["strict"]:
                spirv = with_modes(spirv, self._modes[bool(entry["work"])])
            spirv = self._spirv[plan.file, far] = with_addresses(spirv, far)
        try:
            return self._manager.algorithm(tensors, spirv, plan.grid, np.array(plan.spec, np.uint32),
                                           np.array(plan.words, np.uint32))
        except RuntimeError as error:
            raise KernelError(f"Vulkan: the driver of {self._where} does not compile kernel {plan.kernel}, which needs "
                              f"{plan.needs.threads} invocations, {plan.needs.shared_bytes} bytes of shared memory and "
                              f"{plan.needs.bindings} storage buffers ({error}); update the driver, or use another "
                              f"device, such as 'cpu'.") from error
