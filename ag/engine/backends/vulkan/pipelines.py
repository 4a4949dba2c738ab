"""Compile kernels for one device, bind them to memory, and keep the driver's compiled code in a file.

There is one pipeline per kernel and specialization, and one Algorithm (a pipeline bound to segments of the arena) per
tuple of segments.  Both are made once, never per launch.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from ag.engine.arena import OFFSET_BITS, OFFSET_MASK
from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.cache_files import CacheError, cache_folder, read_cache, warn_once, write_cache
from ag.engine.backends.vulkan.kp_types import Algorithm, Asked, Manager, Tensor
from ag.engine.backends.vulkan.limits import VULKAN_1_1, lacking, most_turns, required_subgroup
from ag.engine.backends.vulkan.loader import kompute
from ag.engine.backends.vulkan.plans import Compiled, Plan, manifest, needs_of, planned, signs_of, spirv_of
from ag.engine.backends.vulkan.products.tiles import Rule, has_few_registers, tiles_of
from ag.engine.backends.vulkan.spirv import modes_of, with_addresses, with_modes
from ag.engine.backends.vulkan.stream.commands import TRANSFER, Command, seconds_of
from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import cores
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.engine.target import Target
from ag.errors import DeviceError, KernelError

_TURNS_PER_COLUMN = 13  # of attention: at 128 features, measured where loops are counted
# Kernels that ops and the compiler can do without: `Target` lists those that fit.
_DISPENSABLE = {"heads": ("attention", "attention_grad"), "chains": ("fused", "fused_pair"),
                "epilogues": ("matmul_chain", "matmul_chain_pair", "conv2d_chain", "conv2d_input_grad_chain")}

_ALIGNED = 16  # bytes, for loads of four words
_MAGIC = b"ag pipelines 1\n"
_DIGEST = 32
_HEADER = struct.Struct("<IIII16s")  # of a driver's cache: length, version 1, vendor, device, UUID of its caches
_MOST_BYTES = 1 << 30  # of the file
_MOST_THREADS = 8  # some drivers take a hundred megabytes while they compile a kernel

Segments = Sequence[tuple[int, Tensor]]
Pipeline = tuple[Compiled, tuple[int, ...]]  # and the operands that are reached by their address


class KeptPipelines:
    """Keep a driver's pipeline cache in a file per kind of device and version of the driver.

    Compiling a kernel takes a driver 1 to 500 ms, and finding it in the cache much less.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        properties = manager.get_device_properties()
        uuid = properties["pipeline_cache_uuid"]
        self._made_for = properties["vendor_id"], properties["device_id"], uuid
        self._name = f"{uuid.hex()}-{properties['driver_version']}.bin"
        self._compiled = manager.pipelines()  # the file has these

    def load(self) -> None:
        """Give the driver the content of the file."""
        try:
            content = read_cache(self._name, _MOST_BYTES)
            if content is not None:
                self._add(content)
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

    def _add(self, content: bytes) -> None:
        path, data = cache_folder() / self._name, content[len(_MAGIC) + _DIGEST :]
        if content != _MAGIC + sha256(data).digest() + data:
            raise CacheError(f"{path} is damaged; kernels are compiled again")
        if not self._is_ours(data):
            raise CacheError(f"{path} was made for another device or driver; kernels are compiled again")
        try:
            self._manager.add_pipeline_cache(data)
        except (RuntimeError, MemoryError) as error:
            raise CacheError(f"the driver does not take {path} ({error})") from error

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
    def __init__(self, manager: Manager, device: DeviceInfo) -> None:
        self._manager, self._where = manager, f"{device.name} ({device.description})"
        self._limits = limits = manager.get_device_properties()
        self.tiles = tiles_of(device, lambda tile: not lacking(tile.needs, limits), limits["max_shared_memory"])
        self._few_registers = has_few_registers(device)
        self.covered = limits["max_storage_buffer_range"]  # bytes; larger segments are reached by their address
        self.makes_parts = limits["api_version"] >= VULKAN_1_1  # a launch may begin at a later workgroup
        self._modes = [modes_of(limits, multiplies) for multiplies in (False, True)]
        self._algorithms: dict[Compiled, dict[tuple[int, ...], Algorithm]] = {}  # by segments
        self._pipelines: dict[Pipeline, Algorithm] = {}  # the first with each
        self._addresses: dict[int, Tensor] = {}  # of segments that no descriptor covers
        self._spirv: dict[tuple[str, tuple[int, ...]], bytes] = {}

    def target(self, rest: int) -> Target:
        """Return what the compiler and ops need to know, such as which kernels do not fit the device."""
        kernels = manifest()["kernels"]
        fits = {what: not any(lacking(needs_of(kernels[name]), self._limits) for name in names if name in kernels)
                for what, names in _DISPENSABLE.items()}
        return Target(units=self.tiles.units, fuse_from=1 if fits["chains"] else sys.maxsize,
                      epilogues=fits["epilogues"], rest=rest,
                      longest_sequence=fits["heads"] and most_turns(self._limits) // _TURNS_PER_COLUMN,
                      few_registers=self._few_registers)

    def plan(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params, addresses: tuple[int, ...],
             tiles: Rule | None = None) -> Plan:
        """Plan a primitive at these shapes, on operands at these addresses; `tiles` replace the rule."""
        bits = 0
        for address in addresses:
            bits |= address
        signs = signs_of(params) if 0.0 in params.values() or "chain" in params else ()
        plan = planned(primitive, shapes, tuple(params.items()), tiles or self.tiles, not bits % _ALIGNED, signs)
        if plan.needs.turns:  # depends on the shapes; the rest was checked with the pipeline
            self._refuse_what_does_not_fit(plan)
        return plan

    def moving(self, of_arena: Segments, source: int, target: int, nbytes: int) -> Command:
        """Return the launch that copies whole words between arena addresses."""
        addresses, shape = (target, source), (nbytes // 4,)
        plan = self.plan(copy, (shape, shape), {}, addresses)
        return self._dispatch(plan, addresses, (nbytes, nbytes), plan.seconds, of_arena)._replace(kernel=TRANSFER)

    def command(self, plan: Plan, addresses: tuple[int, ...], buffers: tuple[Buffer, ...],
                of_arena: Segments) -> Command | None:
        """Return the dispatch of a plan on buffers at these addresses; None for an empty grid."""
        if not plan.grid[0]:
            return None
        if plan.sizes:
            return self._dispatch(plan, addresses, plan.sizes, plan.seconds, of_arena)
        sizes = tuple([b.nbytes for b in buffers])
        return self._dispatch(plan, addresses, sizes, seconds_of(plan.work, sum(sizes)), of_arena)

    def _dispatch(self, plan: Plan, addresses: tuple[int, ...], sizes: tuple[int, ...], seconds: float,
                  of_arena: Segments) -> Command:
        algorithm = self.algorithm(plan, tuple([address >> OFFSET_BITS for address in addresses]), of_arena)
        ends = [(address, address + size) for address, size in zip(addresses, sizes, strict=True)]
        return Command(plan.kernel, algorithm, plan.push([(address & OFFSET_MASK) >> 2 for address in addresses]),
                       plan.grid, [ends[i] for i in plan.read], [ends[i] for i in plan.written], seconds,
                       not self.makes_parts)

    def bound(self, plan: Plan) -> dict[tuple[int, ...], Algorithm]:
        return self._algorithms.setdefault(plan.compiled, {})

    def algorithm(self, plan: Plan, segments: tuple[int, ...], of_arena: Segments) -> Algorithm:
        """Return the Algorithm for a plan, bound to the segments its operands lie in."""
        bound = self._algorithms.get(plan.compiled)
        found = bound.get(segments) if bound is not None else None
        if found is None:
            key = self._key(plan, segments, of_arena)
            made = self._pipelines.get(key)
            if made is None:
                found = self._pipelines[key] = self._pipeline(plan, segments, of_arena)
            else:
                found = self._manager.bound(made, self._tensors(segments, of_arena))
            self._algorithms.setdefault(plan.compiled, {})[segments] = found
        return found

    def make(self, wanted: list[tuple[Plan, tuple[int, ...]]], of_arena: Segments) -> None:
        """Compile the missing pipelines for these plans and addresses, several at once.

        A pipeline that the driver refuses stays missing: `algorithm` tries again and says why.
        """
        within = [(plan, tuple([address >> OFFSET_BITS for address in addresses])) for plan, addresses in wanted]
        keys = [(self._key(plan, segments, of_arena), plan, segments) for plan, segments in within if plan.grid[0]]
        missing = {key: (plan, segments) for key, plan, segments in keys if key not in self._pipelines}
        made = compiled(self._manager, [self._asked(plan, segments, of_arena) for plan, segments in missing.values()])
        for (key, (plan, segments)), algorithm in zip(missing.items(), made, strict=True):
            if algorithm is not None:
                self._pipelines[key] = algorithm
                self._algorithms.setdefault(plan.compiled, {})[segments] = algorithm

    def _key(self, plan: Plan, segments: tuple[int, ...], of_arena: Segments) -> Pipeline:
        """Return the key of a pipeline: kernel, specialization, and the operands that it reaches by address."""
        far = tuple([i for i, segment in enumerate(segments) if of_arena[segment][0] > self.covered])
        return plan.compiled, far

    def _tensors(self, segments: tuple[int, ...], of_arena: Segments) -> list[Tensor]:
        """Return the bound tensors: segments, or eight bytes with the address of one too large for a descriptor."""
        found = []
        for segment in segments:
            nbytes, tensor = of_arena[segment]
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

    def _asked(self, plan: Plan, segments: tuple[int, ...], of_arena: Segments) -> Asked:
        self._refuse_what_does_not_fit(plan)
        _, far = self._key(plan, segments, of_arena)
        spirv = self._spirv.get((plan.file, far))
        if spirv is None:
            spirv = spirv_of(plan.file)
            entry = manifest()["kernels"][plan.file.partition(".")[0]]
            if entry["strict"]:
                spirv = with_modes(spirv, self._modes[entry["multiplies"]])
            spirv = self._spirv[plan.file, far] = with_addresses(spirv, far)
        return (self._tensors(segments, of_arena), spirv, plan.grid, np.array(plan.spec, np.uint32),
                np.array(plan.words, np.uint32), required_subgroup(plan.needs, self._limits))

    def _pipeline(self, plan: Plan, segments: tuple[int, ...], of_arena: Segments) -> Algorithm:
        asked = self._asked(plan, segments, of_arena)
        try:
            return self._manager.algorithm(*asked)
        except DeviceError as error:
            if isinstance(error.__cause__, kompute().DeviceLostError):
                raise
            raise KernelError(f"Vulkan: the driver of {self._where} does not compile kernel {plan.kernel}, which needs "
                              f"{plan.needs.threads} invocations, {plan.needs.shared_bytes} bytes of shared memory and "
                              f"{plan.needs.bindings} storage buffers ({error.__cause__}); update the driver, or use "
                              f"another device, such as 'cpu'.") from error
