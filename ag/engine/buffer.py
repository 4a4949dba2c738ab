"""Buffers: dense row-major arrays in the arena of a device.

Everything that computes holds buffers.  `Device` is what such code may ask of the device a buffer lies on;
`ag.engine.backend` specifies it and adds what only the engine calls.  Nothing here knows tensors, launches or programs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from typing import Any, Protocol
from weakref import ReferenceType, ref

from ag.engine.arena import Arena, Block, Changes, now
from ag.engine.dtype import I32, DType
from ag.engine.primitive_types import Array, PrimitiveTo, Returned
from ag.engine.shape import Shape
from ag.engine.target import Target
from ag.errors import ArenaError

__all__ = ["LATEST", "Buffer", "Device", "OpenRecording", "Run", "fix", "note_written"]


class Run(Protocol):
    """`launch` of a device, or what stands for it: all of the engine that a rule or a launch helper sees."""

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned: ...


class OpenRecording(Protocol):
    """What code above the engine leaves in a recording (`ag.engine.program.Recording`)."""

    on_upload: Callable[[Array, DType], Buffer | None] | None
    guards: list[Callable[[], object]]
    value_checks: list[tuple[Buffer, Callable[[Array], None]]]
    cleared: set[int]


class Device(Protocol):
    """The device of a buffer, as code sees it that computes with buffers; `ag.engine.backend.Backend` is the whole."""

    name: str
    arena: Arena
    target: Target
    asynchronous: bool
    noted_views: list[ReferenceType[Buffer]] | None
    loss_scale: ReferenceType[Buffer] | None

    generator: tuple[object, Buffer] | None

    @property
    def constants(self) -> dict[tuple[float | str, DType], Buffer]: ...
    @property
    def recording(self) -> OpenRecording | None: ...
    def native(self, address: int, shape: Shape, dtype: DType, same_start: Any = None) -> Any: ...
    def alloc(self, shape: Shape, dtype: DType) -> Buffer: ...
    def zeros(self, shape: Shape, dtype: DType) -> Buffer: ...
    def launch(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
               **params: object) -> Returned: ...
    def upload(self, array: Array, into: Buffer) -> None: ...
    def download(self, buffer: Buffer) -> Array: ...
    def assign(self, target: Buffer, source: Buffer) -> None: ...
    def quiet(self) -> AbstractContextManager[object]: ...
    def refuse_while_recording(self, what: str) -> None: ...
    def submit(self) -> None: ...
    def synchronize(self) -> None: ...


class Buffer:
    """A dense row-major array in a backend's arena.

    Attributes
    ----------
    backend : Device
        Who owns the memory.
    block : Block
        The block it lies in, shared by all views.
    address : int
        Arena address of the first element, in bytes.
    shape : tuple of int
    dtype : DType
    native : object
        Whatever the backend works with (a numpy view on the CPU; nothing on Vulkan).
    constant : float or None
        The value of all elements, if it is known and never changes.
    """

    __slots__ = ("__weakref__", "address", "backend", "block", "constant", "dtype", "native", "shape")

    def __init__(self, backend: Device, block: Block, address: int, shape: Shape, dtype: DType, native: Any,
                 constant: float | None = None) -> None:
        self.backend = backend
        self.block = block
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.native = native
        self.constant = constant

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, in whole words."""
        return (prod(self.shape) * self.dtype.itemsize + 3) & ~3

    def view(self, shape: Shape, offset: int = 0) -> Buffer:
        """The same memory from element `offset` on, with another shape."""
        owner, address, dtype = self.backend, self.address + offset * self.dtype.itemsize, self.dtype
        native = owner.native(address, shape, dtype, None if offset else self.native)
        view = Buffer(owner, self.block, address, shape, dtype, native)
        if owner.noted_views is not None:
            owner.noted_views.append(ref(view))
        return view

    def words(self) -> Buffer:
        """The same memory as elements that any kernel may move: 16-bit ones, which are for storage, two by two."""
        if not self.dtype.is_half:
            return self
        owner, shape = self.backend, (self.nbytes // I32.itemsize,)
        words = Buffer(owner, self.block, self.address, shape, I32, owner.native(self.address, shape, I32))
        if owner.noted_views is not None:
            owner.noted_views.append(ref(words))
        return words

    def overlaps(self, other: Buffer) -> bool:
        """Whether both have memory in common."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes

    def changed_since(self, time: int) -> bool:
        """Whether any element was overwritten after `time`."""
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
        self.block, self.address = block, address
        self.native = self.backend.native(address, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<Buffer {self.shape} {self.dtype} at {self.address:#x} on {self.backend.name}>"


def note_written(*buffers: Buffer) -> None:
    """Remember that existing buffers have other elements from now on; what a launch makes afresh needs no note.

    Backends call it for launches, uploads and assignments, whoever replays a program for what it writes.  The tape
    asks for it: a gradient rule must find what the forward pass computed with.

    Raises
    ------
    ArenaError
        If one is a constant, which others share.
    """
    for buffer in buffers:
        block = buffer.block
        changes = block.changes
        if not block.made:
            continue
        if changes is None:
            block.changes = changes = Changes()
        elif changes.fixed:
            raise ArenaError(f"note_written: {buffer!r} is a constant that all ops on {buffer.backend.name} share; "
                             f"write into a copy of it.")
        LATEST.last = changes.last = changes.places[buffer.address, buffer.shape, buffer.dtype.itemsize] = now()


LATEST = Changes()  # of any block, so that most questions need no look at a single one


def fix(buffer: Buffer) -> None:
    """From now on nobody may write into the block of a buffer."""
    buffer.block.changes = buffer.block.changes or Changes()
    buffer.block.changes.fixed = True
