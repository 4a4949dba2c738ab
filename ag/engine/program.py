"""Launches, recordings of them, and programs: recordings that can be run again.

A recording belongs to one thread and one device; work of others for the step would be missing in a replay, so it is
refused.  Launches run while they are recorded, or *wait*: their results lie on a `StandIn` until the compiler has
planned memory.  Asking for one earlier makes the recording `catch_up`, in memory for every result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import prod
from threading import get_ident
from typing import Any, NamedTuple, Protocol, cast
from weakref import ReferenceType, ref

from ag.engine.arena import OFFSET_BITS, Block, now
from ag.engine.buffer import Buffer, Device, settle
from ag.engine.dtype import DType
from ag.engine.primitive import Array, Params, Primitive
from ag.engine.shape import Shape
from ag.errors import CaptureError

_nowhere = count(1 << 32).__next__  # segments of what has no memory: no arena has so many


class Launch(NamedTuple):
    """One launch that was recorded."""

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
        return neutral is not None and self.buffers[2].constant == neutral and (
            self.buffers[0].shape == self.buffers[1].shape)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """All buffers but the outputs."""
        return self.buffers[self.primitive.outputs :]

    @property
    def written(self) -> tuple[Buffer, ...]:
        """Outputs and operands updated in place; what is multiplied with the constant 1 stays as it is."""
        _, scaled, number = self.primitive.scaling or (None, -1, 0)
        kept = scaled if self.buffers[number].constant == 1.0 else -1
        updated = tuple(self.buffers[i] for i in self.primitive.updates if i != kept)
        return self.buffers[: self.primitive.outputs] + updated


Given = Sequence[tuple[Buffer, Array | Buffer]]  # buffers, and what is put there: host arrays, or other buffers


class Program(Protocol):
    """Recorded launches that can be run again."""

    @property
    def launches(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def run(self, given: Given = ()) -> None:
        """Put values into buffers, and launch everything again, in order; does not wait."""

    def copied(self, result: Buffer) -> Buffer:
        """A copy of a small result of the last run; does not wait."""

    def close(self) -> None:
        """Let go of the memory; the program cannot run any more."""


class StandIn(Block):
    """Stands for the block of a result whose launch was noted and has not run: an address without memory.

    The address is nobody else's, in a segment of its own that does not exist.
    """

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


class Recording:
    """An open recording; `program` is there once it is closed."""

    def __init__(self, on_upload: Callable[[Array, DType, Device], Buffer | None] | None = None,
                 recompute: bool = False, trial: bool = False, waits: bool = False) -> None:
        # waits: whether launches are only noted, for the program to make them: until somebody asks for what they
        # leave
        # given_up: whether nobody will make its launches
        # thread: whose it is
        self.waits, self.given_up, self.thread, self.began = waits, False, get_ident(), now()
        # asked for every host array that becomes a buffer while recording, with the type and the device; returns the
        # buffer to use, or None, or raises
        self.on_upload = on_upload
        self._trial = trial  # whether what cannot be recorded only ends the recording, and not what is recorded
        self.recompute = recompute  # whether its program may compute cheap results twice to save memory
        self.backend: Device | None = None  # who works for it: given, or the first device that does something
        # by what they guard, each once; called before every replay, they say what the recording depends on and has
        # changed, or None
        self.guards: dict[str, Callable[[], str | None]] = {}
        # called with the host values that a replay puts into that buffer; they raise if the values are not allowed
        self.value_checks: list[tuple[Buffer, Callable[[Array], None]]] = []
        self.launches: list[Launch] = []  # what was launched so far; once it is compiled, what the program launches
        self.views: list[ReferenceType[Buffer]] = []  # views of the device's buffers that were made meanwhile
        # blocks (by `id`) that were allocated for it; none dies before the recording is closed
        self.made: set[int] = set()
        self.foreign: set[int] = set()  # blocks that other threads of the process allocated or wrote meanwhile
        self._touched: set[int] = set()  # blocks that launches work on which were only noted
        self._moved: list[tuple[ReferenceType[Buffer], StandIn, int]] = []  # from stand-ins to memory
        # the outputs that are to outlast the program; nobody may hold another, nor these, when it is compiled.  None:
        # whatever somebody holds outlasts it.
        self.results: list[tuple[int, int]] | None = None
        self.outputs: list[Buffer] = []  # the results, wherever the program leaves them
        # what code above the engine notes about the step meanwhile; `ag.autograd.captured.guards`
        self.notes: Any = None
        # what cannot be recorded, where that was not raised at once: another thread did it, or this is a trial
        self.failure: CaptureError | None = None
        self.compiled: Callable[[], Program] | None = None  # makes the program; there once the recording is closed

    def works_on(self, device: Device) -> None:
        """Note that a device works for the recording."""
        if self.backend is None:
            self.backend = device
            device.noted_views[self.thread] = self.views
            device.arena.coalesce()  # what a program of before has left, for one
        elif self.backend is not device:
            self.refuse(CaptureError(f"ag_capture: the step works on {self.backend.name} and on {device.name}; a "
                                     f"captured step runs on one device. Capture a step per device, or move "
                                     f"everything to one."))

    def refuse(self, error: CaptureError) -> None:
        """Raise, as something cannot be recorded; on trial, note it and go on."""
        if not self._trial:
            try:
                raise error
            finally:
                del error  # which holds this frame, and with it all that the step has, until garbage is collected
        self.failure = self.failure or error

    def note(self, launch: Launch) -> None:
        """Add a launch of the thread that records."""
        for b in launch.buffers:
            if id(b.block) in self.foreign:
                self.refuse(_threaded(b.shape))
        if self.waits:
            self._touched.update([id(b.block) for b in launch.buffers])
        self.launches.append(launch)

    def promise(self, shape: Shape, dtype: DType) -> Buffer:
        """The result of a launch that is only noted."""
        device = cast(Device, self.backend)
        nbytes = -(-prod(shape) * dtype.itemsize // device.arena.align) * device.arena.align
        block = StandIn(self, _nowhere() << OFFSET_BITS, nbytes or device.arena.align, shape)
        note_block(device, block)
        return Buffer(device, block, block.address, shape, dtype)

    def give_up(self) -> None:
        """Nobody will make its launches: a program of before does, or they failed; what has memory has no values."""
        self.given_up, self.compiled = True, None
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
        """Give memory to all buffers of stand-ins, or to none."""
        moved = {id(b): (b, b.block) for b in buffers if isinstance(b.block, StandIn) and b.block.recording() is self}
        places: dict[int, Block] = {}
        for b, block in moved.values():
            if block.address not in places:
                places[block.address] = place = b.backend.arena.alloc(block.nbytes)
                place.inherit(block)
                note_block(b.backend, place)
                self.made.add(id(place))
        for b, block in moved.values():
            self._moved.append((ref(b), block, b.address))
            place = places[block.address]
            b.relocate(place, place.address + b.address - block.address)

    def sees(self, buffers: tuple[Buffer, ...], written: tuple[Buffer, ...]) -> None:
        """Another thread launches something: it may not work on what was made for the recording."""
        for b in buffers:
            if id(b.block) in self.made:
                self.fail(_threaded(b.shape))
        self.foreign.update(id(b.block) for b in written)

    def fail(self, error: CaptureError) -> None:
        """Another thread did what cannot be recorded."""
        self.failure = self.failure or error
        self.refuse(self.failure)

    def lent(self, block: Block) -> None:
        """Take over what a program lent: from outside, and another thread's if it was replayed since this began."""
        self.made.discard(id(block))
        if block.made > self.began:
            self.foreign.add(id(block))

    def close(self) -> None:
        """The recording was taken out of `OPEN`."""
        if self.backend is not None:
            self.backend.noted_views.pop(self.thread, None)

    def finished(self) -> Program:
        """The program, once: what is recorded goes into it; only after the recording was closed without an error."""
        if self.failure is not None:
            raise self.failure
        if self.compiled is None:
            raise CaptureError("recording: it is still open or failed; leave its `with` block first.")
        compiled, self.compiled = self.compiled, None
        return compiled()


# The open recordings by thread; most of the time there is none, and launches look no further.  Who opens one takes it
# out in a `finally` whose first operation is ``OPEN.pop(thread, None)``: an interrupt finds no place before that.
# Other threads may change it at any time: ``list(OPEN)`` and ``list(OPEN.values())`` are one operation.  Making pairs
# is not, nor is ``OPEN.copy()``: where a garbage collection begins inside it, what it gives may contradict itself.
OPEN: dict[int, Recording] = {}


def recording_here() -> Recording | None:
    """The recording that this thread has open."""
    return OPEN.get(get_ident()) if OPEN else None


def note_block(device: Device, block: Block) -> None:
    """Tell the open recordings whose a block of a device is, which may have the ``id`` of one that died."""
    for thread in list(OPEN):
        recording = OPEN.get(thread)
        if recording is None:  # closed meanwhile
            continue
        if thread == get_ident():
            recording.works_on(device)
            recording.made.add(id(block))
            recording.foreign.discard(id(block))
        elif recording.backend is device:
            recording.made.discard(id(block))
            recording.foreign.add(id(block))


def before_host(*buffers: Buffer) -> None:
    """Before the host reads from memory, or writes there: what its thread has noted, and works on it, runs first.

    What is lent to another thread alone moves to memory of its own.
    """
    recording = recording_here()
    if recording is not None and recording.touches(buffers):
        recording.catch_up()
    settle(*buffers)


def _threaded(shape: Shape) -> CaptureError:
    return CaptureError(f"ag_capture: a tensor of shape {shape} passes between the step's thread and another one, "
                        f"whose launches a replay would not make; compute in the thread that calls the step.")


def held_bytes(launches: list[Launch]) -> int:
    """Arena bytes of all blocks that launches work on."""
    return sum({b.block.address: b.block.nbytes for launch in launches for b in launch.buffers}.values())
