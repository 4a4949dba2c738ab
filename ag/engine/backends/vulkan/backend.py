"""The Vulkan backend: buffers are offsets into the arena's segments, a launch is a recorded dispatch.

A launch evaluates the shape rule, allocates outputs, packs offsets into push constants and hands the command to the
recorder; nothing waits before a download.  A program is the same commands in sequences of their own.  It runs whatever
primitive it is given and must not know one by name: which kernel runs is the matter of `plans` and `tiles`.
`ag.engine.backends.vulkan` makes it, when `ag.engine.device` opens a device.
"""

from __future__ import annotations

import os
import threading
from functools import partial

import numpy as np

from ag.engine.arena import Arena
from ag.engine.backend import Backend, Finding, Meter, closed
from ag.engine.backends.vulkan.examination import examined
from ag.engine.backends.vulkan.kp_types import Tensor
from ag.engine.backends.vulkan.limits import largest_block, largest_segment, spare_bytes
from ag.engine.backends.vulkan.loader import DRIVERS, LetGo
from ag.engine.backends.vulkan.pipeline_cache import KeptPipelines
from ag.engine.backends.vulkan.pipelines import Kernels
from ag.engine.backends.vulkan.plans import Plan, check_kernels
from ag.engine.backends.vulkan.products.autotune import Tune
from ag.engine.backends.vulkan.products.cooperative import Cooperative
from ag.engine.backends.vulkan.products.tiles import Rule
from ag.engine.backends.vulkan.products.trial import tried
from ag.engine.backends.vulkan.quick import Quick
from ag.engine.backends.vulkan.shadow import Shadow
from ag.engine.backends.vulkan.stream.commands import Command, Recorded
from ag.engine.backends.vulkan.stream.cost import Budget
from ag.engine.backends.vulkan.stream.recorder import Recorder
from ag.engine.backends.vulkan.stream.timestamps import Stopwatch
from ag.engine.backends.vulkan.transfers import Inputs, Results, Transfers, whole_words
from ag.engine.buffer import Buffer, note_written, settle
from ag.engine.dtype import BF16, F16, F32, I32, U32
from ag.engine.kernels.convert import loaded, stored
from ag.engine.primitive import Array, Params, Primitive, PrimitiveTo, Returned
from ag.engine.program import Given, Launch, Program, before_host, held_bytes
from ag.engine.shape import Shape
from ag.errors import DtypeError

__all__ = ["VulkanBackend"]

_NUMPY = {d: np.dtype(d.numpy_name) for d in (F16, BF16, F32, I32, U32)}
_FIRST_BYTES = 16 << 20  # software drivers touch every page of an allocation
_REST = 3  # launches for which memory rests, as several may run at once
_IN_TURN = 2  # of the sequences of a program: one that runs, and one that is next
_PARTS = ("recorder", "transfers", "_kept", "_kernels", "_manager", "_cooperative", "_tune", "_shadow", "_quick")
_INHERITED: list[object] = []  # of the process that this one was forked from; never freed


def _words(target: Buffer, value: Array | Buffer) -> tuple[int, int, Array | int]:
    """An address, how many bytes, and what goes there: elements, or what lies at another address."""
    if isinstance(value, Buffer):
        settle(value)
        return target.address, target.nbytes, value.address
    exact = value.dtype == _NUMPY[target.dtype] and target.dtype is not BF16  # of which numpy knows the words only
    return target.address, target.nbytes, value if exact else stored(value, target.dtype)


class VulkanProgram:
    """Recorded sequences, with `barriers` barriers; the launches keep their buffers alive."""

    def __init__(self, backend: VulkanBackend, launches: list[Launch], commands: list[Command]) -> None:
        self._backend = backend
        self._launches = launches
        self.launches = len(commands)
        self._commands = commands
        # By what they have timestamps for, and the most that they may cost: the next to be started comes first.
        self._built: dict[tuple[object, float], list[tuple[Inputs, list[Recorded]]]] = {}
        self._results = Results()
        before = backend.recorder.barriers
        self._sequences()
        self.barriers: int = backend.recorder.barriers - before

    def _sequences(self) -> tuple[Inputs, list[Recorded]]:
        """Those with the timestamps that somebody asks for now, built when first needed, and what they are given.

        None can be started while it runs, so there are two of each if need be: the device then has the next step when
        it ends one.
        """
        recorder = self._backend.recorder
        most = recorder.budget.seconds
        key = recorder.timing, most
        if key not in self._built:
            for timing, limit in list(self._built):
                if isinstance(timing, Stopwatch) or limit != most:  # of an earlier profile, or too long
                    self._built.pop((timing, limit), None)
        built = self._built.setdefault(key, [])
        if not built or (built[0][1] and recorder.runs(built[0][1][-1])):
            if len(built) < _IN_TURN:
                built.insert(0, (Inputs(), recorder.build_all(self._commands)))
            else:
                built.reverse()
        return built[0]

    @property
    def nbytes(self) -> int:
        """Arena bytes of all blocks held."""
        return held_bytes(self._launches)

    def run(self, given: Given = ()) -> None:
        """Start all sequences, in order, after the copies of what is given; waits for their last run only."""
        with self._backend.lock:
            inputs, sequences = self._sequences()
            recorder = self._backend.recorder
            if given and sequences:
                recorder.finish(sequences[-1])
                words = [_words(*pair) for pair in given if 0 not in pair[0].shape]
                sequences = [*inputs.fill(words, self._backend.transfers, recorder), *sequences]
            recorder.play(sequences)

    def copied(self, result: Buffer) -> Buffer:
        """A copy of a result of the last run; does not wait."""
        backend, into = self._backend, self._backend.alloc(result.shape, result.dtype)
        if 0 not in result.shape:
            with backend.lock:
                self._results.copy(into.address, result.address, result.nbytes, backend.transfers, backend.recorder)
        return into

    def close(self) -> None:
        """Wait until the device is done with them, then forget sequences and buffers."""
        self._backend.synchronize()
        self._built.clear()
        self._commands.clear()
        self._launches.clear()


class VulkanBackend(Backend):
    """A Vulkan device.

    Parameters
    ----------
    index : int
        Number of the device, as in ``vulkan:0``.
    guard : int, optional
        Guard bytes around every block, for tests; a multiple of 256.

    Raises
    ------
    DeviceError
        If the extension, a driver or the device is missing.
    KernelError
        If there are no compiled kernels.
    """

    asynchronous = True
    dtypes = frozenset(_NUMPY)

    def __init__(self, index: int = 0, *, guard: int = 0) -> None:
        self.name = f"vulkan:{index}"
        self._index = index
        self._manager = DRIVERS.manager(index)
        check_kernels()
        self.info = DRIVERS.device_info(index)
        self.lock = threading.RLock()
        properties = self._manager.get_device_properties()
        heap = self.info.memory_bytes
        largest, bound = largest_block(properties, self._manager.features()["buffer_device_address"])
        self.arena = Arena(
            self._grow,
            first_bytes=_FIRST_BYTES,
            max_segment_bytes=largest_segment(properties)[0],
            max_block_bytes=largest,
            bound=bound,
            limit_bytes=heap * 15 // 16 if heap else None,  # software drivers enforce no limit of their own
            budget=self._budget if heap and self._manager.memory_budget() else None,
            guard=guard,
        )
        self._kept = KeptPipelines(self._manager)
        self._kept.load()
        self._kernels = Kernels(self._manager, self.info)
        self.target = self._kernels.target(_REST)
        self.recorder = Recorder(self._manager, self.name, Budget(self.info.kind))
        self.transfers = Transfers(self._manager, self.recorder, self.arena.segments, self.info.kind,
                                   partial(self._kernels.moving, self.arena.segments))
        self.timestamps = self.recorder.timestamps
        self._kernels.tiles = tried(self, self._kernels.tiles)
        tuned = os.environ.get("AG_TUNE") == "1" and not self._kernels.tiles.forced
        self._tune = Tune(self, self._kernels.tiles, properties) if tuned else None
        self._cooperative = Cooperative(self, self._manager, self._kernels.tiles)
        self._shadow = Shadow(self) if os.environ.get("AG_SHADOW") == "1" else None
        self._trace = os.environ.get("AG_TRACE") == "1"
        self._quick = Quick(self._kernels, self.recorder, self.lock)
        if not (guard or self._trace or self._shadow or self._tune) and type(self).launch is VulkanBackend.launch:
            setattr(self, "launch", self._quick.launch(self, self.launch))  # noqa: B010
        if self.settings.events is not None:
            self.retime()

    # -------------------------------------------------------------------------------------- memory

    def _grow(self, nbytes: int) -> Tensor:
        return self._manager.arena(nbytes // 4, nbytes > self._kernels.covered)

    def _budget(self) -> int:
        """The largest segment that the driver would still give to this process without moving others out."""
        manager = self._manager
        return max(spare_bytes(manager.memory_heaps(), manager.memory_budget(), manager.arena_heaps()))

    def upload(self, array: Array, into: Buffer) -> None:
        before_host(into)
        note_written(into)
        words = whole_words(stored(array, into.dtype))
        if words.size:
            with self.lock:
                self.transfers.upload(into.address, words)

    def copy(self, target: Buffer, source: Buffer) -> None:
        before_host(target, source)
        if source.size:
            with self.lock:
                self.transfers.assign(target.address, source.address, source.nbytes // 4)

    def download(self, buffer: Buffer) -> Array:
        self.refuse_while_recording("reads a tensor on the host")
        before_host(buffer)
        if not buffer.size:
            return loaded(np.empty(buffer.shape, _NUMPY[buffer.dtype]), buffer.dtype)
        with self.lock:
            words = self.transfers.download(buffer.address, buffer.nbytes // 4)
        return loaded(words.view(_NUMPY[buffer.dtype])[: buffer.size].reshape(buffer.shape), buffer.dtype)

    def _write_bytes(self, address: int, content: bytes) -> None:
        with self.lock:
            self.transfers.upload(address, np.frombuffer(content, np.uint32))

    def _read_bytes(self, address: int, nbytes: int) -> bytes:
        with self.lock:
            return bytes(self.transfers.download(address, nbytes // 4).tobytes())

    # -------------------------------------------------------------------------------------- launches

    def check_operands(self, primitive: Primitive, buffers: tuple[Buffer, ...]) -> None:
        super().check_operands(primitive, buffers)
        if "bfloat" not in primitive.params and any(b.dtype.is_half for b in buffers):
            raise DtypeError(f"{primitive.name}: an operand holds 16-bit elements, which are only for storage; "
                             f"launch it through ag.autograd.mixed_precision.launch_on.")

    def launch(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
               **params: object) -> Returned:
        """`Backend.launch`, whose next call of this kind compiled code makes, where there is a compiler."""
        out = super().launch(primitive, *operands, into=into, **params)
        self._quick.learn(primitive, operands, params, out)
        return out

    def _run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> None:
        for b in buffers:
            if b.backend is not self or b.dtype.is_half:
                self.check_operands(primitive, buffers)
                break
        with self.lock:
            command = self.command(primitive, buffers, params)
            if command is None:
                return
            if self._trace:
                print(f"ag: {self.name} {primitive.name} {[b.shape for b in buffers]} {params} grid {command.grid}")
            if self._shadow is not None and self.recording is None:
                self._shadow.run(primitive, buffers, params, command)
            else:
                self.recorder.record(command)

    def program(self, launches: list[Launch]) -> Program:
        with self.lock:
            planned = [self._planned(x.primitive, x.buffers, x.params) for x in launches]
            self._kernels.make(planned, self.arena.segments)
            commands = [self._kernels.command(*each, x.buffers, self.arena.segments)
                        for each, x in zip(planned, launches, strict=True)]
            return VulkanProgram(self, launches, [c for c in commands if c is not None])

    def command(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params,
                tiles: Rule | None = None) -> Command | None:
        """The dispatch of a launch, in tiles by the device's rule unless another is given; None if nothing is to do."""
        plan, addresses = self._planned(primitive, buffers, params, tiles)
        return self._kernels.command(plan, addresses, buffers, self.arena.segments)

    def _planned(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params,
                 tiles: Rule | None = None) -> tuple[Plan, tuple[int, ...]]:
        """How to run it, and where its operands lie."""
        shapes, addresses = tuple([b.shape for b in buffers]), tuple([b.address for b in buffers])
        if tiles is None and (self._tune is not None or self.settings.precision != "highest"):
            tiles = self._rule(primitive, shapes, params)
        return self._kernels.plan(primitive, shapes, params, addresses, tiles), addresses

    def _rule(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params) -> Rule | None:
        """The tiles of a product where they are not those of the device's table."""
        found: Rule | None = None
        if self.settings.precision != "highest":
            found = self._cooperative.rule(primitive, shapes, params, self.settings.precision)
        if found is None and self._tune is not None:
            found = self._tune.rule(primitive, shapes, params)
        return found

    def submit(self) -> None:
        with self.lock:
            self.recorder.submit()

    def synchronize(self) -> None:
        with self.lock:
            self.recorder.wait()

    def retime(self) -> None:
        with self.lock:
            self.recorder.retime(self.settings.events)

    def meter(self, meter: Meter | None) -> None:
        with self.lock:
            self.recorder.meter(meter)

    def examine(self) -> list[Finding]:
        with self.lock:
            return examined(self, self._manager, self._kernels.tiles)

    def close(self) -> None:
        with self.lock:  # so that no other thread launches what nobody would wait for
            try:
                if not DRIVERS.inherited and not self.recorder.lost:  # there, nothing is left to wait for
                    self.synchronize()
                    self._kept.save()
            finally:
                DRIVERS.release(self._index)
                self.let_go(closed(self.name))

    def let_go(self, why: str) -> None:
        with self.lock:
            super().let_go(why)
            if DRIVERS.inherited:
                _INHERITED.append(self.__dict__.copy())  # destroying what is the parent's would hang
            for name in _PARTS:
                setattr(self, name, LetGo(why))

    def forked(self) -> None:
        self.lock = threading.RLock()
        super().forked()
        DRIVERS.forked()
        self.let_go(DRIVERS.inheritance(self.name))
