"""Run primitives on a Vulkan device: buffers are offsets into the arena's segments, a launch is a recorded dispatch.

Nothing waits before a download.  No primitive is known by name here: `plans` and `tiles` choose kernels.
"""

from __future__ import annotations

import threading
from typing import NoReturn

import numpy as np

from ag.engine.arena import Arena
from ag.engine.backend import Finding, Meter, closed
from ag.engine.backends.shader.autotune import Tune, TunedBackend, tried
from ag.engine.backends.shader.manifest import takes_halves
from ag.engine.backends.shader.plans import Plan
from ag.engine.backends.shader.tiles import Rule
from ag.engine.backends.vulkan.cooperative import Cooperative
from ag.engine.backends.vulkan.devices import DRIVERS, largest_block, spare_bytes
from ag.engine.backends.vulkan.examination import examined
from ag.engine.backends.vulkan.kp import Tensor, check_kernels
from ag.engine.backends.vulkan.pipelines import KeptPipelines, Kernels
from ag.engine.backends.vulkan.stream import Budget, Command, Recorded, Recorder, Stopwatch
from ag.engine.backends.vulkan.transfers import Inputs, Results, Transfers, whole_words
from ag.engine.buffer import Buffer, note_written, settle
from ag.engine.dtype import BF16, BOOL, F16, F32, I32, U32
from ag.engine.kernels.convert import compute_in_float32, computes_in_halves, loaded, stored
from ag.engine.primitive import Array, Params, Primitive, PrimitiveTo, Returned
from ag.engine.program import Given, Launch, Program, before_host
from ag.errors import DeviceError, DtypeError, KernelError, switched_on

_NUMPY = {d: np.dtype(d.numpy_name) for d in (F16, BF16, F32, I32, U32, BOOL)}
_FIRST_BYTES = 16 << 20  # software drivers touch every page of an allocation
_REST = 3  # launches before freed memory is used again, as several may run at once
_IN_TURN = 2  # sequences of a program: one runs while the next is prepared
_PARTS = ("recorder", "transfers", "_kept", "_kernels", "_manager", "_cooperative", "_tune")
_INHERITED: list[object] = []  # from the parent process; never freed
_RTOL, _ATOL = 2e-3, 1e-5  # of AG_SHADOW; looser than the kernels' tests: for bugs, not for rounding


def _words(target: Buffer, value: Array | Buffer) -> tuple[int, int, Array | int]:
    """Return an address, a size in bytes, and what goes there: elements, or another address."""
    if isinstance(value, Buffer):
        settle(value)
        return target.address, target.nbytes, value.address
    exact = value.dtype == _NUMPY[target.dtype] and target.dtype not in (BF16, BOOL)  # numpy has only their words
    return target.address, target.nbytes, value if exact else stored(value, target.dtype)


class _LetGo:
    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise DeviceError(self._why)


class VulkanProgram(Program):
    def __init__(self, backend: VulkanBackend, launches: list[Launch], commands: list[Command]) -> None:
        super().__init__(launches)
        self._backend, self._commands = backend, commands
        # By kind of timestamps and limit of cost; the next to start comes first.
        self._built: dict[tuple[object, float], list[tuple[Inputs, list[Recorded]]]] = {}
        self._results = Results()
        before = backend.recorder.barriers
        self._sequences()
        self.barriers: int = backend.recorder.barriers - before

    def _sequences(self) -> tuple[Inputs, list[Recorded]]:
        """Return sequences and their inputs; two take turns, as one that runs cannot be resubmitted."""
        recorder = self._backend.recorder
        most = recorder.budget.seconds
        key = recorder.timing, most
        if key not in self._built:  # those of an earlier profile, or of another limit, go
            self._built = {k: v for k, v in self._built.items() if not isinstance(k[0], Stopwatch) and k[1] == most}
        built = self._built.setdefault(key, [])
        if not built or (built[0][1] and recorder.runs(built[0][1][-1])):
            if len(built) < _IN_TURN:
                built.insert(0, (Inputs(), recorder.build_all(self._commands)))
            else:
                built.reverse()
        return built[0]

    @property
    def launches(self) -> int:
        return len(self._commands)

    def run(self, given: Given = ()) -> None:
        """Copy the given values, then start all sequences; wait only for their last run."""
        with self._backend.lock:
            inputs, sequences = self._sequences()
            recorder = self._backend.recorder
            if given and sequences:
                recorder.finish(sequences[-1])
                words = [_words(*pair) for pair in given if 0 not in pair[0].shape]
                sequences = [*inputs.fill(words, self._backend.transfers, recorder), *sequences]
            recorder.play(sequences)

    def copied(self, result: Buffer) -> Buffer:
        backend, into = self._backend, self._backend.alloc(result.shape, result.dtype)
        if 0 not in result.shape:
            with backend.lock:
                self._results.copy(into.address, result.address, result.nbytes, backend.transfers, backend.recorder)
        return into

    def close(self) -> None:
        self._backend.synchronize()
        self._built.clear()
        self._commands.clear()
        super().close()


class VulkanBackend(TunedBackend):
    """A Vulkan device, by its number; tests put `guard` bytes around every block, a multiple of 256."""

    asynchronous = True
    dtypes = frozenset(_NUMPY)
    recorder: Recorder

    def __init__(self, index: int = 0, *, guard: int = 0) -> None:
        self.name = f"vulkan:{index}"
        self._index = index
        self._manager = DRIVERS.manager(index)
        check_kernels()
        self.info = DRIVERS.listed()[index].info
        self.lock = threading.RLock()
        properties = self._manager.get_device_properties()
        heap = self.info.memory_bytes
        largest, bound = largest_block(properties, self._manager.features()["buffer_device_address"])
        self.arena = Arena(
            self._grow, first_bytes=_FIRST_BYTES, max_segment_bytes=largest_block(properties)[0],
            max_block_bytes=largest, bound=bound, name=self.name, guard=guard,
            limit_bytes=heap * 15 // 16 if heap else None,  # software drivers enforce no limit of their own
            budget=self._budget if heap and self._manager.memory_budget() else None)
        self._kept = KeptPipelines(self._manager)
        self._kept.load()
        self._kernels = Kernels(self._manager, self.info, self.arena.segments)
        self.target = self._kernels.target(_REST)
        self.halves = takes_halves()
        self.recorder = Recorder(self._manager, self.name, Budget(self.info.kind))
        self.transfers = Transfers(self._manager, self.recorder, self.arena.segments, self.info.kind,
                                   self._kernels.moving)
        self.timestamps = self.recorder.timestamps
        self._kernels.tiles = tried(self, self._kernels.tiles)
        tuned = switched_on("AG_TUNE") and not self._kernels.tiles.forced
        self._tune = Tune(self, self._kernels.tiles, properties) if tuned else None
        self._cooperative = Cooperative(self, self._manager, self._kernels.tiles)
        self._shadow, self._trace = map(switched_on, ("AG_SHADOW", "AG_TRACE"))
        if not (guard or self._trace or self._shadow or self._tune) and type(self).launch is VulkanBackend.launch:
            setattr(self, "launch", self._kernels.quick(self, self.launch, self._record))  # noqa: B010
        if self.settings.events is not None:
            self.retime()

    # -------------------------------------------------------------------------------------- memory

    def _grow(self, nbytes: int) -> Tensor:
        return self._manager.arena(nbytes // 4, nbytes > self._kernels.covered)

    def _budget(self) -> int:
        """Return the largest segment that the driver can give without evicting other memory."""
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
                self.transfers.assign(target.address, source.address, source.nbytes)

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
        takes = (True,) * len(buffers) if "bfloat" in primitive.params else self.halves.get(primitive.name, ())
        if any(b.dtype.is_half and not (takes and takes[i]) for i, b in enumerate(buffers)):
            raise DtypeError(f"{primitive.name}: an operand holds 16-bit elements, which are only for storage; "
                             f"launch it through ag.autograd.half.launch_on.")

    def launch(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
               **params: object) -> Returned:
        """Launch as `Backend.launch` does, and leave a recipe by which compiled code makes the next of this kind."""
        out = super().launch(primitive, *operands, into=into, **params)
        self._kernels.learn(primitive, operands, params, out)
        return out

    def _record(self, command: Command) -> None:
        with self.lock:
            self.recorder.record(command)

    def _run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> None:
        for b in buffers:
            if b.backend is not self or b.dtype.is_half:
                self.check_operands(primitive, buffers)
                break
        with self.lock:
            commands = self._kernels.commands(*self._planned(primitive, buffers, params), buffers)
            if self._trace and commands:
                grid = commands[0].grid
                print(f"ag: {self.name} {primitive.name} {[b.shape for b in buffers]} {params} grid {grid}")
            if self._shadow and self.recording is None and commands:  # inside a capture the host cannot read
                self._run_checked(primitive, buffers, params, commands)
                return
            for command in commands:
                self.recorder.record(command)

    def _run_checked(
        self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params, commands: list[Command]
    ) -> None:
        """Run a launch on the numpy reference as well, and name the first element that differs: AG_SHADOW=1."""
        operands = {(b.address, b.shape, b.dtype): b for b in buffers}  # one may be given twice
        held = {place: stored(self.download(b), b.dtype) for place, b in operands.items()}
        expected = [held[b.address, b.shape, b.dtype] for b in buffers]
        for command in commands:
            self.recorder.record(command)
        dtypes = [b.dtype for b in buffers]
        with np.errstate(all="ignore"):
            if computes_in_halves(primitive, dtypes):
                compute_in_float32(primitive, expected, dtypes, params)
            else:
                primitive.reference(*expected, **params)
        for i in sorted({*range(primitive.outputs), *primitive.updates}):
            found = stored(self.download(buffers[i]), buffers[i].dtype)
            wrong = ~np.isclose(found, expected[i], _RTOL, _ATOL, equal_nan=True)
            if wrong.any():
                at = tuple(int(k) for k in np.argwhere(wrong)[0])
                raise KernelError(
                    f"{primitive.name}: {primitive.operands[i]}{list(at)} of shape {buffers[i].shape} is {found[at]} "
                    f"on {self.name} and {expected[i][at]} by the reference (parameters {params}).")

    def program(self, launches: list[Launch]) -> Program:
        with self.lock:
            planned = [self._planned(x.primitive, x.buffers, x.params) for x in launches]
            self._kernels.make(planned)
            return VulkanProgram(self, launches, [
                command for each, x in zip(planned, launches, strict=True)
                for command in self._kernels.commands(*each, x.buffers)])

    def command(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params,
                tiles: Rule | None = None) -> Command | None:
        plan, addresses = self._planned(primitive, buffers, params, tiles)
        return self._kernels.command(plan, addresses, buffers)

    def _planned(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params,
                 tiles: Rule | None = None) -> tuple[Plan, tuple[int, ...]]:
        shapes, addresses = tuple([b.shape for b in buffers]), tuple([b.address for b in buffers])
        if tiles is None and self.settings.precision != "highest":
            tiles = self._cooperative.rule(primitive, shapes, params, self.settings.precision)
        if tiles is None and self._tune is not None:
            tiles = self._tune.rule(primitive, shapes, params)
        types = 0
        for i, b in enumerate(buffers):
            types |= b.dtype.code << 2 * i
        return self._kernels.plan(primitive, shapes, params, addresses, tiles, types), addresses

    def submit(self) -> None:
        with self.lock:
            self.recorder.submit()

    def synchronize(self) -> None:
        with self.lock:
            self.recorder.wait()

    def release(self) -> dict[int, tuple[int, object]]:
        with self.lock:
            self.refuse_while_recording("frees memory")
            self.recorder.forget()  # what died may be used by commands that still run
            gone = super().release()
            self._kernels.forget(gone)
            self.transfers.forget()
            return gone

    def retime(self) -> None:
        with self.lock:
            self.recorder.retime(self.settings.events)

    def meter(self, meter: Meter | None) -> None:
        with self.lock:
            self.recorder.meter(meter)

    def examine(self) -> list[Finding]:
        with self.lock:
            return examined(self, self._manager, self._kernels.tiles, self.recorder.budget.long)

    def close(self) -> None:
        with self.lock:  # no other thread may launch behind the last wait
            try:
                if not DRIVERS.parent and not self.recorder.lost:  # these have nothing to wait for
                    self.synchronize()
                    self._kept.save()
            finally:
                DRIVERS.release(self._index)
                self.let_go(closed(self.name))

    def let_go(self, why: str) -> None:
        with self.lock:
            super().let_go(why)
            if DRIVERS.parent:
                _INHERITED.append(self.__dict__.copy())  # destroying the parent's objects would hang
            for name in _PARTS:
                setattr(self, name, _LetGo(why))

    def forked(self) -> None:
        self.lock = threading.RLock()
        super().forked()
        DRIVERS.forked()
        self.let_go(DRIVERS.inheritance(self.name))
