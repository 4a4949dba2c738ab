"""Buffers: dense row-major arrays in the arena of a device, and `Device`, what their holders may use of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from math import prod
from threading import RLock, get_ident
from types import MappingProxyType
from typing import Any, NoReturn, Protocol
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary, ref

from ag.engine.arena import Arena, Block, Changes, after_fork, now
from ag.engine.dtype import I32, U32, DType
from ag.engine.interpreter import recording_here
from ag.engine.primitive_types import Array, PrimitiveTo, Returned
from ag.engine.shape import Shape, nbytes_of
from ag.engine.target import Target
from ag.errors import ArenaError, CaptureError


class Run(Protocol):
    """`launch` of a device, or what stands for it: all of the engine that a rule or a launch helper sees."""

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned: ...


class Device(ABC):
    """The part of a device that holders of buffers use; `ag.engine.backend.Backend` is the whole."""

    name: str  # the device's name (`"cpu"`, `"vulkan:0"`)
    arena: Arena
    target: Target = Target()  # what the compiler and the choice of kernels go by
    # by name of a primitive, which of its operands may have 16 bits; others are converted before
    halves: Mapping[str, tuple[bool, ...]] = MappingProxyType({})
    asynchronous: bool  # whether launches return before the work is done

    @cached_property
    def constants(self) -> dict[tuple[object, DType], Buffer]:
        """Buffers of one number each, by number and element type; see `constant`."""
        return {}

    @cached_property
    def generators(self) -> WeakKeyDictionary[object, tuple[object, Buffer]]:
        """By random generator: of which seeding its state on this device is, and the state."""
        return WeakKeyDictionary()

    def native(self, address: int, shape: Shape, dtype: DType) -> Any:
        """Make the object that the backend finds in `Buffer.native`."""
        return None

    @abstractmethod
    def alloc(self, shape: Shape, dtype: DType) -> Buffer: ...
    @abstractmethod
    def constant(self, value: float | Array, dtype: DType) -> Buffer: ...
    @abstractmethod
    def zeros(self, shape: Shape, dtype: DType) -> Buffer: ...
    @abstractmethod
    def launch(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
               **params: object) -> Returned: ...
    @abstractmethod
    def program(self, launches: list[Any]) -> Any: ...

    @abstractmethod
    def upload(self, array: Array, into: Buffer) -> None:
        """Copy a host array of the same shape, converting its element type; does not wait."""

    def assign(self, target: Buffer, source: Buffer) -> None:
        """Copy a buffer into one of its size and type, without waiting; refused in a step for memory of before."""
        if (recording := recording_here()) is not None and not recording.owns(target.block):
            recording.refuse(CaptureError(f"ag_capture: the step copies into older memory on {self.name}, and a replay "
                                          f"would not; do that between steps."))
        note_written(target)
        self.copy(target, source)

    @abstractmethod
    def copy(self, target: Buffer, source: Buffer) -> None:
        """`assign` to memory that is new, or of which no gradient rule asks whether it was written."""

    @abstractmethod
    def download(self, buffer: Buffer) -> Array:
        """A host copy; waits for everything launched before."""

    def look(self, buffer: Buffer) -> Array:
        """Like `download`, but where the host has the memory, that itself, read-only, until it is written."""
        return self.download(buffer)

    @abstractmethod
    def submit(self) -> None:
        """Start whatever was launched and is not yet running; does not wait."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything launched."""

    def check_open(self) -> None:
        return

    @property
    def recording(self) -> Any:
        """The `ag.engine.program.Recording` that this thread has open; others use the device as always."""
        return recording_here()

    def refuse_while_recording(self, what: str) -> None:
        """Raise if a recording is open: the host must not touch device memory inside a captured step."""
        if (recording := recording_here()) is not None:
            recording.refuse(CaptureError(
                f"ag_capture: the step {what} on {self.name}; a replay cannot do that. "
                f"Return the tensor and read it after the step, or change state between steps."))


class Buffer:
    """A dense row-major array in a backend's arena."""

    __slots__ = ("__weakref__", "_native", "address", "backend", "block", "constant", "dtype", "shape")

    def __init__(self, backend: Device, block: Block, address: int, shape: Shape, dtype: DType,
                 constant: float | None = None) -> None:
        self.backend = backend  # who owns the memory
        self.block = block  # the block it lies in, shared by all views
        self.address = address  # arena address of the first element, in bytes
        self.shape = shape
        self.dtype = dtype
        self.constant = constant  # the value of all elements, if it is known and never changes
        self._native: Any = None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Say what to do instead of pickling memory of a device, or copying what holds it."""
        raise TypeError(f"what lies on {self.backend.name} cannot be pickled or copied with its owner; save models "
                        f"with ag_save_model and training with ag_save_checkpoint, or take numpy() of a tensor.")

    @property
    def native(self) -> Any:
        """Whatever the backend works with (a numpy view on the CPU; nothing on Vulkan), made when first asked for."""
        native = self._native
        if native is None:
            moves = type(self.block) is CopyOnWrite  # before the address is read: another thread may copy it
            native = self.backend.native(self.address, self.shape, self.dtype)
            if not moves:
                self._native = native
        return native

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, in whole words."""
        return nbytes_of(self.shape, self.dtype)

    def view(self, shape: Shape, offset: int = 0, dtype: DType | None = None) -> Buffer:
        """The same memory from element `offset` on, with another shape, perhaps as elements of another type."""
        if type(self.block) is not Block:
            self.block.settle()
        owner, dtype = self.backend, dtype or self.dtype
        view = Buffer(owner, self.block, self.address + offset * dtype.itemsize, shape, dtype)
        if (recording := recording_here()) is not None:
            recording.views.append(ref(view))
        if type(self.block) is CopyOnWrite:
            self.block.holders.append(ref(view))
        return view

    def words(self) -> Buffer:
        """The same memory as elements that any kernel may move: 16-bit ones, which are for storage, two by two."""
        return self.view((self.nbytes // I32.itemsize,), dtype=I32) if self.dtype.is_half else self

    def overlaps(self, other: Buffer) -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes

    def changed_since(self, time: int) -> bool:
        """Return whether any element was overwritten after `time`."""
        changes = self.block.changes
        if changes is None or changes.last <= time:
            return False
        end = self.address + self.nbytes
        for place in tuple(changes.places):
            address, shape, itemsize = place
            if changes.places[place] > time and address < end and self.address < address + prod(shape) * itemsize:
                return True
        return False

    def relocate(self, block: Block, address: int) -> None:
        """Let the buffer lie elsewhere; its contents stay behind."""
        self.address, self._native = address, None
        self.block = block  # last: who finds no `CopyOnWrite` there, in another thread, goes by the others

    def __repr__(self) -> str:
        return f"<Buffer {self.shape} {self.dtype} at {self.address:#x} on {self.backend.name}>"


class CopyOnWrite(Block):
    """Memory of a program that a result and its views, the holders, share until the program writes it again."""

    __slots__ = ("_owner", "_thread", "holders")

    def __init__(self, buffer: Buffer, thread: int) -> None:
        # which alone replays the program (`get_ident`); 0 if several do
        self._owner, self._thread = buffer.block, thread  # keeps the memory
        self.address, self.nbytes, self.sharers = buffer.address, buffer.nbytes, ()
        self.made, self.changes = now(), None
        self.holders: list[ReferenceType[Buffer]] = []
        buffer.block.sharers = [*buffer.block.sharers, ref(self)]

    def settle(self) -> None:
        """Copy if the program might be replayed while this thread uses a holder."""
        if self._thread != get_ident():
            self.copy()

    def copy(self) -> None:
        """Give the holders a copy in memory of their own."""
        with _copying:
            holders = [b for holder in self.holders if (b := holder()) is not None]
            self.holders = []
            if not holders:
                return
            device, shape = holders[0].backend, (self.nbytes // U32.itemsize,)
            whole = Buffer(device, self, self.address, shape, U32)
            apart = device.alloc(shape, U32)
            device.copy(apart, whole)
            apart.block.inherit(self)
            if (recording := recording_here()) is not None:
                recording.lent(apart.block)
            for b in holders:
                b.relocate(apart.block, b.address + apart.address - self.address)


_copying = RLock()  # is held while holders are relocated


@after_fork
def _forked() -> None:
    global _copying
    _copying = RLock()


def settle(*buffers: Buffer) -> None:
    """Copy what another thread's program may overwrite, before this thread works on buffers."""
    for b in buffers:
        if type(b.block) is not Block:
            b.block.settle()


def copy_on_write(buffer: Buffer, thread: int) -> Buffer:
    """A buffer that shares a program's memory until that is written; `thread` as of `CopyOnWrite`."""
    block = CopyOnWrite(buffer, thread)
    shared = Buffer(buffer.backend, block, buffer.address, buffer.shape, buffer.dtype)
    block.holders.append(ref(shared))
    return shared


def copy_out(block: Block) -> None:
    """Let all that share a block's memory copy it, as it is about to be overwritten."""
    sharers, block.sharers = block.sharers, ()
    for reference in sharers:
        sharer = reference()
        if sharer is not None:
            sharer.copy()


def note_written(*buffers: Buffer) -> None:
    """Note for gradient rules that buffers have other elements; what shares their memory is copied first."""
    for buffer in buffers:
        if type(buffer.block) is not Block:
            buffer.block.settle()
        block = buffer.block  # of now: a holder may have been relocated
        if block.sharers:
            copy_out(block)
        changes = block.changes
        if not block.made:
            continue
        if changes is None:
            block.changes = changes = Changes()
        elif changes.fixed:
            raise ArenaError(f"note_written: {buffer!r} is a constant that all ops on {buffer.backend.name} share; "
                             f"write into a copy of it.")
        LATEST.last = changes.last = changes.places[buffer.address, buffer.shape, buffer.dtype.itemsize] = now()
        if (recording := recording_here()) is not None:
            recording.wrote(block, changes.last)


# Parameters, optimizers' states and programs, by id: who uses memory, for `ag.memory`.
HOLDERS: WeakValueDictionary[int, object] = WeakValueDictionary()
LATEST = Changes()  # of any block, so that most questions need no look at a single one


def fix(buffer: Buffer) -> None:
    """From now on nobody may write into the block of a buffer."""
    buffer.block.changes = buffer.block.changes or Changes()
    buffer.block.changes.fixed = True
