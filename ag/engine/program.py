"""Launches, recordings of them, and programs: recordings that can be run again.

Launches run while they are recorded, or *wait*: their results lie on an `Unallocated` block until memory is planned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple, cast
from weakref import ReferenceType, ref

from ag.engine.arena import OFFSET_BITS, Block, after_fork, now
from ag.engine.buffer import HOLDERS, Buffer, CopyOnWrite, Device, Run, note_written, settle
from ag.engine.dtype import DType
from ag.engine.interpreter import Above, Interpreter, called_in, enter, leave, recording_here
from ag.engine.primitive import Array, Params, Primitive
from ag.engine.shape import Shape, nbytes_of
from ag.errors import CaptureError

_nowhere = count(1 << 32).__next__  # segments of what has no memory: no arena has so many


class Launch(NamedTuple):
    primitive: Primitive
    buffers: tuple[Buffer, ...]  # all operands, in the order of the reference
    params: Params
    fresh: bool  # whether the outputs were allocated for this launch

    @property
    def copies(self) -> bool:
        """Return whether the output is the first input, element for element."""
        if self.primitive.copies:
            return True
        neutral = self.primitive.neutral
        result, x = self.buffers[:2]
        return neutral is not None and self.buffers[2].constant == neutral and (
            result.shape == x.shape and result.dtype is x.dtype)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        return self.buffers[self.primitive.outputs :]

    @property
    def written(self) -> tuple[Buffer, ...]:
        """Outputs and operands updated in place; what is multiplied with the constant 1 stays as it is."""
        _, scaled, number = self.primitive.scaling or (None, -1, 0)
        kept = scaled if self.buffers[number].constant == 1.0 else -1
        updated = tuple(self.buffers[i] for i in self.primitive.updates if i != kept)
        return self.buffers[: self.primitive.outputs] + updated


Given = Sequence[tuple[Buffer, Array | Buffer]]  # buffers, and what is put there: host arrays, or other buffers


class Program(ABC):
    """Recorded launches that can be run again; they keep their buffers alive."""

    quick_copy: Callable[[Buffer], Buffer] | None = None  # `copied` in one call of compiled code, without events

    def __init__(self, launches: list[Launch]) -> None:
        self._launches = launches
        HOLDERS[id(self)] = self

    @property
    def launches(self) -> int:
        return len(self._launches)

    @property
    def nbytes(self) -> int:
        """Arena bytes of all blocks that launches work on."""
        return sum({b.block.address: b.block.nbytes for b in self.buffers}.values())

    @property
    def buffers(self) -> list[Buffer]:
        return [b for launch in list(self._launches) for b in launch.buffers]

    @abstractmethod
    def run(self, given: Given = ()) -> None:
        """Put values into buffers, and launch everything again, in order; does not wait."""

    @abstractmethod
    def copied(self, result: Buffer) -> Buffer:
        """A copy of a small result of the last run; does not wait."""

    def close(self) -> None:
        """Let go of the memory; the program cannot run any more."""
        self._launches.clear()


class Unallocated(Block):
    """The block of a result whose launch has not run: an address in a segment of its own, which does not exist."""

    __slots__ = ("recording", "shape")

    def __init__(self, recording: Recording, address: int, nbytes: int, shape: Shape) -> None:
        super().__init__(address, nbytes)
        self.recording, self.shape = ref(recording), shape  # of the result, for messages

    def settle(self) -> None:
        """Only the recording, in its thread, may work on what is not there."""
        recording = self.recording()
        if recording is None or recording.given_up:
            raise CaptureError(f"ag_capture: a tensor of shape {self.shape} has no values: the call that was to make "
                               f"it was only compared with an earlier one, or failed before it ran; return from the "
                               f"step what you keep.")
        if recording.thread != get_ident():
            recording.fail(_threaded(self.shape))


class Owned(Block):
    """Memory that an open recording has allocated: only its thread may work there, as who works settles it first."""

    __slots__ = ()

    def settle(self) -> None:
        """Raise a `CaptureError` in another thread."""
        if (here := recording_here()) is not None and here.owns(self):
            return
        if self.changes is not None and self.changes.fixed:  # a constant, which all threads share
            return
        owner = next((r for r in list(_open.values()) if r.owns(self)), None)
        if owner is None:  # closed meanwhile
            _become(self, Block)
        else:
            owner.fail(_threaded((self.nbytes,)))


def _become(block: Block, kind: type[Block]) -> None:
    block.__class__ = kind


_open: dict[int, Recording] = {}  # open recordings of all threads by id; looked at only if a thread meddles


@after_fork
def _forked() -> None:
    for recording in [r for r in _open.values() if r.thread != get_ident()]:
        recording.release()


class Recording(Interpreter):
    """A context that records the launches of its thread; `finished` then makes the program."""

    records = True

    def __init__(self, build: Callable[[Recording], Program], backend: Device | None = None,
                 on_upload: Callable[[Array, DType, Device], Buffer | None] | None = None, recompute: bool = False,
                 trial: bool = False, waits: bool = False) -> None:
        self._build = build  # makes the program of a closed recording
        self.backend = backend  # the device: given, or the first that does something
        # asked for every host array that becomes a buffer; returns the one to use, or None, or raises
        self.on_upload = on_upload
        self.recompute = recompute  # whether its program may compute cheap results twice to save memory
        self._trial = trial  # whether what cannot be recorded only ends the recording, and not what is recorded
        # whether launches are only noted until something asks for their results; whether nothing will make them
        self.waits, self.given_up, self.thread, self.began = waits, False, get_ident(), now()
        # by what they guard, each once; before every replay they say what has changed, or None
        self.guards: dict[str, Callable[[], str | None]] = {}
        # ids that a replay puts into a buffer are below a limit; for others the function raises
        self.limits: list[tuple[Buffer, int, Callable[[Array], None]]] = []
        self.launches: list[Launch] = []  # what was launched so far; once it is compiled, what the program launches
        self.views: list[ReferenceType[Buffer]] = []  # views that the thread made meanwhile
        # blocks (by `id`) that were allocated for it; none dies before the recording is closed
        self.made: set[int] = set()
        self._owned: dict[int, tuple[Block, int]] = {}  # the same while it is open, and when each was allocated
        self._adopted: dict[int, Block] = {}  # blocks made by this thread that count as from before
        self._wrote: dict[int, int] = {}  # by the id of a block, when this thread wrote there last
        self._touched: set[int] = set()  # blocks that launches work on which were only noted
        self._moved: list[tuple[ReferenceType[Buffer], Unallocated, int]] = []  # to memory
        # the outputs that are to outlast the program, while nobody holds one; None: whatever somebody holds
        self.results: list[tuple[int, int]] | None = None
        self.outputs: list[Buffer] = []  # the results, wherever the program leaves them
        # what code above the engine notes about the step meanwhile; `ag.capture.guards`
        self.notes: Any = None
        self.failure: CaptureError | None = None  # the first thing that cannot be recorded
        self._ready = False  # whether it is closed, and was not left by an exception

    def __enter__(self) -> Recording:
        if recording_here() is not None:
            raise CaptureError("record: this thread is recording already; captured steps do not nest.")
        _open[id(self)] = self
        enter(self)
        if self.backend is not None:
            self.backend.arena.coalesce()  # what a program of before has left, for one
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
        self._ready = kind is None and not self.given_up

    def works_on(self, device: Device) -> None:
        if self.backend is None:
            self.backend = device
            device.arena.coalesce()
        elif self.backend is not device:
            self.refuse(CaptureError(f"ag_capture: the step works on {self.backend.name} and on {device.name}; a "
                                     f"captured step runs on one device. Capture a step per device, or move "
                                     f"everything to one."))

    def refuse(self, error: CaptureError) -> None:
        """Note that something cannot be recorded, also if the step catches the error; raise, except on trial."""
        if self.failure is None:
            self.failure = CaptureError(f"{error}{called_in()}")  # without a traceback, which would hold the step
        if not self._trial:
            try:
                raise error
            finally:
                del error  # it holds this frame, and with it all that the step has, until garbage is collected

    def fail(self, error: CaptureError) -> None:
        """Refuse what another thread did; later refusals there repeat it."""
        self.failure = self.failure or error
        self.refuse(self.failure)

    # -------------------------------------------------------------------------------------- what the thread does

    def launch(self, device: Above, primitive: Primitive, operands: tuple[Buffer, ...], into: Above,
               params: Params) -> Above:
        """Note a launch, and make it unless the recording waits."""
        self.works_on(device)
        for b in operands:
            if type(b.block) is CopyOnWrite:
                b.block.copy()  # to memory of its own, which the recording may refer to
        waits = self.waits
        result, buffers = device.operands_of(primitive, operands, into, params, self.promise if waits else None)
        device.check_operands(primitive, buffers)
        for b in buffers:
            if self._is_foreign(b.block):
                self.refuse(_threaded(b.shape))
        launch = Launch(primitive, buffers, params, into is None)
        if into is not None or primitive.updates:
            note_written(*buffers[: primitive.outputs], *[buffers[i] for i in primitive.updates])
        if waits:
            self._touched.update([id(b.block) for b in buffers])
        self.launches.append(launch)
        if not waits:
            device._run(primitive, buffers, params)
        return result

    def allocated(self, device: Device, block: Block) -> None:
        self.works_on(device)
        self.claim(block)

    def uploaded(self, array: Array, dtype: object, device: Device) -> Buffer | None:
        return None if self.on_upload is None else self.on_upload(array, cast(DType, dtype), device)

    def wrote(self, block: Block, time: int) -> None:
        self._wrote[id(block)] = time

    def before_op(self, name: str, inputs: Sequence[Above], values: Sequence[object], params: Sequence[object],
                  launch: Run) -> Run:
        """Note the tensors; interpreters around a recording do not hear of its ops."""
        self.uses(inputs, False)
        return launch

    def after_op(self, function: object, name: str, inputs: Sequence[Above], params: Sequence[object],
                 out: Above) -> None:
        return

    def uses(self, tensors: Sequence[Above], gradients: bool) -> None:
        if self.notes is not None:
            self.notes.tensors(tensors)

    def grad_read(self, x: Above, grad: Above) -> Above:
        return grad if self.notes is None else self.notes.grad_read(x, grad)

    def grad_written(self, x: Above) -> None:
        if self.notes is not None:
            self.notes.grad_written(x)

    # -------------------------------------------------------------------------------------- whose memory it is

    def owns(self, block: Block) -> bool:
        """Return whether a block was allocated for this recording, which is open."""
        return id(block) in self._owned and self._owned[id(block)][0] is block

    def claim(self, block: Block) -> None:
        """Let nothing but this thread work on a block as long as the recording is open."""
        self.made.add(id(block))
        self._owned[id(block)] = block, block.made
        if type(block) is Block:
            _become(block, Owned)

    def lent(self, block: Block) -> None:
        """Count a block, to which a result of a captured step moved, as from before: as the program's memory was."""
        self.made.discard(id(block))
        if self._owned.pop(id(block), None) is not None and type(block) is Owned:
            _become(block, Block)

    def adopt(self, block: Block) -> None:
        """Count a block that this thread just made as from before: state that outlives the step."""
        self.lent(block)
        self._adopted[id(block)] = block

    def _is_foreign(self, block: Block) -> bool:
        """Return whether another thread has allocated a block, or written there, since the recording was opened."""
        if id(block) in self._owned or type(block) is Unallocated:
            return False
        changes, wrote = block.changes, self._wrote.get(id(block))
        if changes is not None and changes.fixed:  # constants are of all threads
            return False
        if block.made > self.began and id(block) not in self._adopted:
            return True
        return changes is not None and changes.last > self.began and changes.last != wrote

    def close(self) -> None:
        leave(self)
        if id(self) not in _open:
            return
        if self.failure is None and not self.given_up:
            foreign = next((b for launch in self.launches for b in launch.buffers if self._is_foreign(b.block)), None)
            if foreign is not None:
                self.failure = _threaded(foreign.shape)
        self.release()

    def release(self) -> None:
        """Make the memory ordinary."""
        _open.pop(id(self), None)
        for block, _ in self._owned.values():
            if type(block) is Owned:
                _become(block, Block)
        self._owned, self._adopted = {}, {}

    # -------------------------------------------------------------------------------------- results that wait

    def promise(self, shape: Shape, dtype: DType) -> Buffer:
        """The result of a launch that is only noted."""
        device = cast(Device, self.backend)
        nbytes = -(-nbytes_of(shape, dtype) // device.arena.align) * device.arena.align
        block = Unallocated(self, _nowhere() << OFFSET_BITS, nbytes or device.arena.align, shape)
        self.claim(block)
        return Buffer(device, block, block.address, shape, dtype)

    def give_up(self) -> None:
        """Nothing will make its launches: a program of before does, or they failed; what has memory has no values."""
        self.given_up, self._ready = True, False
        self.launches.clear()
        for reference, block, address in self._moved:
            if (b := reference()) is not None:
                b.relocate(block, address)

    def touches(self, buffers: tuple[Buffer, ...]) -> bool:
        """Return whether launches that were only noted work on one of some buffers."""
        return self.waits and any(id(b.block) in self._touched for b in buffers)

    def catch_up(self) -> None:
        """Make all launches that were only noted; from now on they run as they come."""
        if not self.waits:
            return
        self.waits = False
        if self.launches:
            views = [b for view in self.views if (b := view()) is not None]
            try:
                self.settle_in([*views, *(b for launch in self.launches for b in launch.buffers)])
                cast(Device, self.backend).program([*self.launches]).run()
            except BaseException:
                self.give_up()
                raise

    def settle_in(self, buffers: Iterable[Buffer]) -> None:
        """Give memory to all unallocated buffers, or to none."""
        moved = {id(b): (b, b.block) for b in buffers
                 if isinstance(b.block, Unallocated) and b.block.recording() is self}
        places: dict[int, Block] = {}
        for b, block in moved.values():
            if block.address not in places:
                places[block.address] = place = b.backend.arena.alloc(block.nbytes)
                place.inherit(block)
                if id(self) in _open:
                    self.claim(place)
                self.made.add(id(place))
        for b, block in moved.values():
            self._moved.append((ref(b), block, b.address))
            place = places[block.address]
            b.relocate(place, place.address + b.address - block.address)

    def finished(self) -> Program:
        """The program, once: what is recorded goes into it; only after the recording was closed without an error."""
        if self.failure is not None:
            raise self.failure
        if not self._ready:
            raise CaptureError("recording: it is still open or failed; leave its `with` block first.")
        self._ready = False
        return self._build(self)


def before_host(*buffers: Buffer) -> None:
    """Run what was noted of memory that the host now reads or writes; what is lent to other threads moves."""
    if (recording := recording_here()) is not None and recording.touches(buffers):
        recording.catch_up()
    settle(*buffers)


def _threaded(shape: Shape) -> CaptureError:
    return CaptureError(f"ag_capture: a tensor of shape {shape} passes between the step's thread and another one, "
                        f"whose launches a replay would not make; compute in the thread that calls the step.")
