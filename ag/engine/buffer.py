"""Buffers, and programs recorded over them: what a backend hands out.

A buffer is a dense row-major array in a backend's arena; a program is a list of launches on buffers that can be run
again.  `ag.engine.backend` says what backends promise about both.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

from ag.engine.arena import Block
from ag.engine.dtype import DType
from ag.engine.shape import Shape

if TYPE_CHECKING:
    from ag.engine.backend import Backend

__all__ = ["Buffer"]


class Buffer:
    """A dense row-major array in a backend's arena.

    Attributes
    ----------
    backend : Backend
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

    def __init__(self, backend: Backend, block: Block, address: int, shape: Shape, dtype: DType, native: Any,
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
        owner, address = self.backend, self.address + offset * self.dtype.itemsize
        view = Buffer(owner, self.block, address, shape, self.dtype, owner.native(address, shape, self.dtype))
        if owner.noted_views is not None:
            owner.noted_views.append(ref(view))
        return view

    def overlaps(self, other: Buffer) -> bool:
        """Whether both have memory in common."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes

    def relocate(self, block: Block, address: int) -> None:
        """Let the buffer lie elsewhere; its contents stay behind."""
        self.block, self.address = block, address
        self.native = self.backend.native(address, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<Buffer {self.shape} {self.dtype} at {self.address:#x} on {self.backend.name}>"
