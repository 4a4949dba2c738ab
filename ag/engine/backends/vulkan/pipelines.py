"""Compile kernels for one device, bind them to memory, make commands of plans, and keep compiled code in a file.

Launches of equal shapes and parameters differ only in their operands' addresses, so the first one leaves a recipe,
which `ag/native/launch.c` follows in 4 us; Python takes 10.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256

import numpy as np

from ag.engine.arena import OFFSET_BITS, OFFSET_MASK, Block
from ag.engine.backend import Backend, DeviceInfo
from ag.engine.backends.shader.cache_files import CacheError, cache_folder, read_cache, warn_once, write_cache
from ag.engine.backends.shader.manifest import lacking, manifest, most_turns, needs_of, required_subgroup, spirv_of
from ag.engine.backends.shader.plans import Compiled, Plan, planned, seconds_of, signs_of
from ag.engine.backends.shader.tiles import Rule, has_few_registers, tiles_of
from ag.engine.backends.vulkan.devices import VULKAN_1_1
from ag.engine.backends.vulkan.kp import Algorithm, Asked, Manager, Tensor, kompute
from ag.engine.backends.vulkan.spirv import modes_of, with_addresses, with_functions, with_modes
from ag.engine.backends.vulkan.stream import TRANSFER, Command
from ag.engine.buffer import Buffer, note_written
from ag.engine.cpu_threads import cores
from ag.engine.dtype import F32
from ag.engine.interpreter import recording_here
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive import PRIMITIVES, Params, Primitive
from ag.engine.shape import Shape
from ag.engine.target import Target
from ag.errors import KernelError
from ag.native import code as _code

_TURNS_PER_COLUMN = 13  # of attention: at 128 features, measured where loops are counted
# Kernels that ops and the compiler can do without: `Target` lists those that fit.
_DISPENSABLE = {"heads": ("attention", "attention_grad"),
                "terms": ("masked_attention", "masked_attention_grad"), "chains": ("fused", "fused_pair"),
                "epilogues": ("matmul_chain", "matmul_chain_pair", "conv2d_chain", "conv2d_input_grad_chain")}

_ALIGNED = 16  # bytes, for loads of four words
_MAGIC = b"ag pipelines 1\n"
_DIGEST = 32
_HEADER = struct.Struct("<IIII16s")  # of a driver's cache: length, version 1, vendor, device, UUID of its caches
_MOST_BYTES = 1 << 30  # of the file
_MOST_THREADS = 8  # some drivers take a hundred megabytes while they compile a kernel

_RECIPES = 4096  # of one primitive
_MULTIPLE, _OTHER = 0, 4  # addresses that stand for all multiples of `_ALIGNED`, and for all others

Segments = Sequence[tuple[int, Tensor]]
Launches = dict[str, tuple[dict[object, tuple[object, ...] | None], tuple[str, ...]]]
Pipeline = tuple[Compiled, tuple[int, ...]]  # and the operands that are reached by their address


class KeptPipelines:
    """Keep a driver's compiled kernels in a file: compiling one takes 1 to 500 ms."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        properties = manager.get_device_properties()
        uuid = properties["pipeline_cache_uuid"]
        self._made_for = properties["vendor_id"], properties["device_id"], uuid
        self._name = f"{uuid.hex()}-{properties['driver_version']}.bin"
        self._compiled = manager.pipelines()  # the file has these

    def load(self) -> None:
        try:
            content, path = read_cache(self._name, _MOST_BYTES), cache_folder() / self._name
            if content is None:
                return
            data = content[len(_MAGIC) + _DIGEST :]
            if content != _MAGIC + sha256(data).digest() + data:
                raise CacheError(f"{path} is damaged; kernels are compiled again")
            if not self._is_ours(data):
                raise CacheError(f"{path} was made for another device or driver; kernels are compiled again")
            try:
                self._manager.add_pipeline_cache(data)
            except (RuntimeError, MemoryError) as error:
                raise CacheError(f"the driver does not take {path} ({error})") from error
        except CacheError as error:
            warn_once(error)

    def save(self) -> None:
        """Write the driver's cache, with what other processes have written, if it has compiled anything since."""
        compiled = self._manager.pipelines()
        if compiled == self._compiled:
            return
        self.load()
        try:
            data = self._manager.pipeline_cache()
            write_cache(self._name, _MAGIC + sha256(data).digest() + data)
        except CacheError as error:
            warn_once(error)
        except (RuntimeError, MemoryError) as error:
            warn_once(CacheError(f"the driver does not return its compiled kernels ({error})"))
        self._compiled = compiled

    def _is_ours(self, data: bytes) -> bool:
        """Return whether this driver wrote it for this kind of device; drivers must check that, and some do not."""
        if len(data) < _HEADER.size:
            return False
        length, version, vendor, device, uuid = _HEADER.unpack_from(data)
        return length >= _HEADER.size and version == 1 and (vendor, device, uuid) == self._made_for


def compiled(manager: Manager, asked: list[Asked]) -> list[Algorithm | None]:
    """Compile in as many threads as the process may use cores; None for each that failed."""
    threads = min(cores(), _MOST_THREADS, len(asked))
    return manager.algorithms(asked, threads) if threads > 1 else [None] * len(asked)


class Kernels:
    def __init__(self, manager: Manager, device: DeviceInfo, segments: Segments = ()) -> None:
        self._manager, self._segments = manager, segments
        self._where = f"{device.name} ({device.description})"
        self._limits = limits = manager.get_device_properties()
        self.tiles = tiles_of(device, lambda tile: not lacking(tile.needs, limits), limits["max_shared_memory"],
                              min(limits["max_work_group_invocations"], limits["max_work_group_size"][0]))
        self._few_registers = has_few_registers(device)
        self.covered = limits["max_storage_buffer_range"]  # bytes; larger segments are reached by their address
        self._makes_parts = limits["api_version"] >= VULKAN_1_1  # a launch may begin at a later workgroup
        self._modes = [modes_of(limits, multiplies) for multiplies in (False, True)]
        self._algorithms: dict[Compiled, dict[tuple[int, ...], Algorithm]] = {}  # by segments
        self._pipelines: dict[Pipeline, Algorithm] = {}  # the first with each
        self._addresses: dict[int, Tensor] = {}  # of segments that no descriptor covers
        self._spirv: dict[tuple[object, ...], bytes] = {}  # by file, operands reached by address, and functions
        self.launches: Launches = {}  # by primitive: recipes by shapes, types and parameters; names of the parameters
        self._learned_with = self.tiles

    def target(self, rest: int) -> Target:
        """Return what the compiler and ops need to know, such as which kernels do not fit the device."""
        kernels = manifest()["kernels"]
        fits = {what: not any(lacking(needs_of(kernels[name]), self._limits) for name in names if name in kernels)
                for what, names in _DISPENSABLE.items()}
        return Target(units=self.tiles.units, fuse_from=1 if fits["chains"] else sys.maxsize,
                      epilogues=fits["epilogues"], rest=rest,
                      longest_sequence=fits["heads"] and most_turns(self._limits) // _TURNS_PER_COLUMN,
                      terms=fits["terms"], few_registers=self._few_registers)

    def plan(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params, addresses: tuple[int, ...],
             tiles: Rule | None = None, types: int = 0) -> Plan:
        """Plan a primitive at these shapes, on operands of these types and addresses; `tiles` replace the rule."""
        bits = 0
        for address in addresses:
            bits |= address
        signs = signs_of(params) if 0.0 in params.values() or "chain" in params else ()
        try:
            plan = planned(primitive, shapes, tuple(params.items()), tiles or self.tiles, not bits % _ALIGNED, signs,
                           types)
        except KernelError as error:
            raise KernelError(f"Vulkan: {error}") from error
        if plan.needs.turns:  # depends on the shapes; the rest was checked with the pipeline
            self._refuse_what_does_not_fit(plan)
        return plan

    def command(self, plan: Plan, addresses: tuple[int, ...], buffers: tuple[Buffer, ...] = ()) -> Command | None:
        """Return the dispatch of a plan on buffers at these addresses; None for an empty grid."""
        if not plan.grid[0]:
            return None
        sizes, seconds = plan.sizes, plan.seconds
        if not sizes:
            sizes = tuple([b.nbytes for b in buffers])
            seconds = seconds_of(plan.work, sum(sizes))
        algorithm = self.algorithm(plan, tuple([address >> OFFSET_BITS for address in addresses]))
        ends = [(address, address + size) for address, size in zip(addresses, sizes, strict=True)]
        return Command(plan.kernel, algorithm, plan.push([(address & OFFSET_MASK) >> 2 for address in addresses]),
                       plan.grid, [ends[i] for i in plan.read], [ends[i] for i in plan.written], seconds,
                       not self._makes_parts)

    def commands(self, plan: Plan, addresses: tuple[int, ...], buffers: tuple[Buffer, ...]) -> list[Command]:
        """Return the dispatches of a plan, one after the other; none for an empty grid."""
        first = self.command(plan, addresses, buffers)
        if first is None or plan.pieces == 1:
            return [] if first is None else [first]
        return [first._replace(push=push, cost=first.cost / plan.pieces) for push in plan.pushes(first.push)]

    def moving(self, source: int, target: int, nbytes: int) -> Command:
        shape = (nbytes // F32.itemsize,)
        command = self.command(self.plan(copy, (shape, shape), {}, (target, source)), (target, source))
        assert command is not None  # as there are words
        return command._replace(kernel=TRANSFER)

    def quick(self, backend: Backend, slowly: Callable[..., object], record: Callable[[Command], None]) -> object:
        """Return a compiled launch that falls back to `slowly`, which is to `learn`; `slowly` without the extension."""
        if _code is None:
            return slowly
        known = [PRIMITIVES[name] for name in manifest()["kernels"] if name in PRIMITIVES]
        self._learned_with = self.tiles
        self.launches = {p.name: ({}, p.params) for p in known if p.outputs == 1 and not p.updates
                         and "chain" not in p.params and "bfloat" not in p.params}
        same = (backend.settings, "precision", "highest"), (self, "tiles", self.tiles)
        return _code.Launch(backend, self.launches, backend.settings, slowly, note_written, Buffer, Block, OFFSET_BITS,
                            0, record, Command, same)

    def learn(self, primitive: Primitive, operands: tuple[Buffer, ...], params: Params, out: object) -> None:
        entry = self.launches.get(primitive.name)
        if entry is None or not isinstance(out, Buffer) or recording_here() is not None or (
                self.tiles != self._learned_with):
            return
        recipes, names = entry
        key = (*[x for b in operands for x in (b.shape, b.dtype)], *[params[name] for name in names if name in params])
        if key in recipes:
            return
        if len(recipes) >= _RECIPES:
            recipes.clear()
        recipes[key] = None
        zero = any(params.get(argument["name"]) == 0 for argument in manifest()["kernels"][primitive.name]["push"]
                   if argument["type"] == "float")  # 0.0 and -0.0 are equal keys
        plain = all(b.dtype is F32 or not b.dtype.is_float for b in operands) and out.dtype is operands[0].dtype
        if plain and not zero and len(params) == len(names) and out.shape == primitive.shape(
                *[b.shape for b in operands], **params):
            shapes = (out.shape, *[b.shape for b in operands])
            rows = [self._recipe(self.plan(primitive, shapes, params, (address,))) for address in (_MULTIPLE, _OTHER)]
            recipes[key] = out.nbytes, out.shape, out.dtype, tuple(rows)

    def _recipe(self, plan: Plan) -> object:
        """Return the parts of a command that stay; None if compiled code cannot make it."""
        if plan.around is None or not plan.grid[0] or not plan.sizes:
            return None
        before, _, after = plan.around
        return (plan.kernel, self._algorithms.setdefault(plan.compiled, {}), before, after, plan.grid, plan.sizes,
                bytes(plan.writes), plan.seconds, not self._makes_parts, (0, 0))

    def algorithm(self, plan: Plan, segments: tuple[int, ...]) -> Algorithm:
        """Return the Algorithm for a plan, bound to the segments its operands lie in."""
        bound = self._algorithms.get(plan.compiled)
        found = bound.get(segments) if bound is not None else None
        if found is None:
            key, manager = self._key(plan.compiled, segments), self._manager
            made = self._pipelines.get(key)
            try:
                if made is None:
                    found = self._pipelines[key] = manager.bare.algorithm(*self._asked(plan, segments))
                else:
                    found = manager.bare.bound(made, self._tensors(segments))
            except manager.faults.errors as error:
                if made is not None or isinstance(error, (MemoryError, manager.faults.lost)):
                    raise manager.faults.told(error) from error
                raise KernelError(
                    f"Vulkan: the driver of {self._where} does not compile kernel {plan.kernel}, which needs "
                    f"{plan.needs.threads} invocations, {plan.needs.shared_bytes} bytes of shared memory and "
                    f"{plan.needs.bindings} storage buffers ({error}); update the driver, or use another device, such "
                    f"as 'cpu'.") from error
            self._algorithms.setdefault(plan.compiled, {})[segments] = found
        return found

    def forget(self, gone: Collection[int]) -> None:
        """Let go of segments that were given back; a pipeline stays where another Algorithm has it."""
        for number in gone:
            self._addresses.pop(number, None)
        self._pipelines.clear()
        for compiled, bound in list(self._algorithms.items()):  # another thread may add to them
            for segments, algorithm in list(bound.items()):
                if set(segments).isdisjoint(gone):
                    self._pipelines[self._key(compiled, segments)] = algorithm
                else:
                    del bound[segments]

    def make(self, wanted: list[tuple[Plan, tuple[int, ...]]]) -> None:
        """Compile the missing pipelines for plans and addresses at once; of one refused, `algorithm` says why."""
        within = [(plan, tuple([address >> OFFSET_BITS for address in addresses])) for plan, addresses in wanted]
        keys = [(self._key(plan.compiled, segments), plan, segments) for plan, segments in within if plan.grid[0]]
        missing = {key: (plan, segments) for key, plan, segments in keys if key not in self._pipelines}
        asked, faults = [self._asked(plan, segments) for plan, segments in missing.values()], self._manager.faults
        try:
            made = compiled(self._manager.bare, asked)
        except faults.errors as error:
            raise faults.told(error) from error
        for (key, (plan, segments)), algorithm in zip(missing.items(), made, strict=True):
            if algorithm is not None:
                self._pipelines[key] = algorithm
                self._algorithms.setdefault(plan.compiled, {})[segments] = algorithm

    def _key(self, compiled: Compiled, segments: tuple[int, ...]) -> Pipeline:
        return compiled, tuple([i for i, n in enumerate(segments) if self._segments[n][0] > self.covered])

    def _tensors(self, segments: tuple[int, ...]) -> list[Tensor]:
        """Return the bound tensors: segments, or eight bytes with the address of one too large for a descriptor."""
        found = []
        for segment in segments:
            nbytes, tensor = self._segments[segment]
            if nbytes > self.covered:
                if segment not in self._addresses:
                    address = np.array([self._manager.address(tensor)], "<u8")
                    self._addresses[segment] = self._manager.tensor_t(address.view(np.uint32),
                                                                      kompute().TensorTypes.host)
                tensor = self._addresses[segment]
            found.append(tensor)
        return found

    def _refuse_what_does_not_fit(self, plan: Plan) -> None:
        if lacks := lacking(plan.needs, self._limits):
            raise KernelError(f"Vulkan: kernel {plan.kernel} does not fit {self._where}: it needs {lacks}; run it on "
                              f"another device, such as 'cpu'.")

    def _asked(self, plan: Plan, segments: tuple[int, ...]) -> Asked:
        self._refuse_what_does_not_fit(plan)
        _, far = self._key(plan.compiled, segments)
        entry, used = manifest()["kernels"][plan.file.partition(".")[0]], plan.functions
        spirv = self._spirv.get((plan.file, far, used))
        if spirv is None:
            spirv = with_functions(spirv_of(plan.file), used) if used else spirv_of(plan.file)
            if entry["strict"]:
                spirv = with_modes(spirv, self._modes[entry["multiplies"]])
            spirv = self._spirv[plan.file, far, used] = with_addresses(spirv, far)
        return (self._tensors(segments), spirv, plan.grid, np.array(plan.spec, np.uint32),
                np.array(plan.words, np.uint32), required_subgroup(plan.needs, self._limits))
