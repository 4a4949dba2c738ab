"""Frozen tensors: matrices of 16 bits or in blocks, which stay so in memory; products read them as they are.

They are constants: no gradient, no change.  A device that needs one has it in its memory from then on; CPU devices
share theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, cast
from weakref import WeakKeyDictionary, finalize

import numpy as np

from ag.autograd.tensor import HOST_OPERATORS, OPS, Tensor
from ag.engine.arena import now
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer, Device, fix
from ag.engine.dtype import U32
from ag.engine.interpreter import current, recording_here
from ag.engine.kernels.packing import Packing
from ag.engine.primitive_types import Array
from ag.engine.shape import Shape
from ag.errors import DtypeError
from ag.names import Making, Named


def uploaded(words: Array, device: Device) -> Buffer:
    """Return words on a device, which nobody may overwrite."""
    buffer = device.alloc(words.shape, U32)
    buffer.block.made = 0  # the upload is no change of older memory
    device.upload(words, buffer)
    buffer.block.made = now()
    fix(buffer)
    if (recording := recording_here()) is not None:
        recording.adopt(buffer.block)
    return buffer


class Memory:
    """The words of a frozen matrix, on every device that has needed them."""

    def __init__(self, home: Buffer) -> None:
        self.home = home  # where they were put first
        self._elsewhere: WeakKeyDictionary[Device, Buffer] = WeakKeyDictionary()

    def on(self, device: Device) -> Buffer:
        """Return the words in memory that a device reaches, copied there by the first call."""
        if device is self.home.backend:
            return self.home
        found = self._elsewhere.get(device)
        if found is None:
            self.home.backend.check_open()
            found = cast(Backend, device).reached(self.home)
            if found is None:
                found = uploaded(self._words(), device)
            else:
                fix(found)
                finalize(found.block, bool, self.home).atexit = False  # a program that has it keeps the memory
            self._elsewhere[device] = found
        return found

    def _words(self) -> Array:
        native: Array | None = self.home.native  # of a CPU device, also while a step is recorded
        return self.home.backend.download(self.home) if native is None else native

    def move(self, device: Device) -> None:
        """Let the words lie on one device, and on no other."""
        self.home = self.on(device)
        self._elsewhere.clear()


class FrozenTensor(metaclass=Named):
    """A matrix that is never trained, in few bits: `ag_frozen` makes it.

    Products (``W @ x``, ``W.T @ g``), `ag_embedding_lookup` and `linear_cross_entropy` take it, with the results that
    its float32 numbers have, to the bit.  Other ops refuse it; ``W.numpy()`` gives them its numbers.

    Attributes
    ----------
    shape : (int, int)
    packing : str
        ``"bf16"``, ``"f16"``, ``"q8_0"``, ``"q4_0"``, ``"q4_1"``, ``"q4_k"`` or ``"q6_k"``.

    Examples
    --------
    >>> W = ag.ag_frozen([[1.0, 2.0]], "bf16")
    >>> (W @ [[3.0], [4.0]]).item(), W.T.shape
    (11.0, (2, 1))
    """

    __signature__ = Making()
    __slots__ = ("__weakref__", "_packing", "_rows", "_turned", "memory")
    requires_grad: bool

    def __init__(self, memory: Memory, packing: Packing, rows: Shape, turned: bool = False) -> None:
        if type(memory) is not Memory:
            raise TypeError(f"FrozenTensor: a {type(memory).__name__} was given; ag_frozen(values, packing) makes one.")
        self.memory, self._packing = memory, packing
        self._rows = rows  # how many there are, and their length: numbers of a row lie side by side
        self._turned = turned  # whether the tensor is the transpose of these rows

    # -------------------------------------------------------------------------------------- description

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        return self._rows[::-1] if self._turned else self._rows

    ndim = 2

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._rows[0] * self._rows[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.memory.home.nbytes

    @property
    def packing(self) -> str:
        """Name of the packing."""
        return self._packing.name

    dtype = packing

    @property
    def device(self) -> str:
        """Name of the device that it was made on, or moved to."""
        return self.memory.home.backend.name

    @property
    def turned(self) -> bool:
        """True if the numbers of a column lie side by side in memory, as in a transpose."""
        return self._turned

    def __repr__(self) -> str:
        return f"<ag_frozen {self.shape} {self.packing} on {self.device}>"

    def __len__(self) -> int:
        return self.shape[0]

    # -------------------------------------------------------------------------------------- values

    def numpy(self) -> Array:
        """Return the float32 numbers as a host array; waits."""
        if (here := current()) is not None:
            here.read(self)
        home = self.memory.home
        found = self._packing.unpack(home.backend.download(home), *self._rows)
        return np.ascontiguousarray(found.T) if self._turned else found

    def blocks(self) -> Array:
        """Return the blocks that a GGUF file has, bytes in rows; waits."""
        home = self.memory.home
        return self._packing.to_blocks(home.backend.download(home), *self._rows)

    @property
    def T(self) -> FrozenTensor:
        """The transpose, of the same memory."""
        return FrozenTensor(self.memory, self._packing, self._rows, not self._turned)

    def __matmul__(self, other: object) -> Tensor:
        product: Tensor = OPS["ag_matmul"](self, other)
        return product

    def __copy__(self) -> FrozenTensor:
        return self  # as nothing changes it

    def __deepcopy__(self, memo: object) -> FrozenTensor:
        return self

    def __reduce__(self) -> tuple[Callable[..., FrozenTensor], tuple[object, ...]]:
        return HOST_OPERATORS["restored"], (self.blocks(), self.packing, self.device, self._turned)

    def share(self, other: FrozenTensor) -> None:
        """Become what another one of this shape and packing is, in its memory."""
        self.memory, self._rows, self._turned = other.memory, other._rows, other._turned

    # -------------------------------------------------------------------------------------- refusals

    def refuse(self, function: str) -> NoReturn:
        """Raise the error about an op that does not take it."""
        raise DtypeError(f"{function}: an operand is frozen in {self.packing}, which products take as W @ x and "
                         f"W.T @ g, ag_embedding_lookup and linear_cross_entropy; for other ops use "
                         f"ag_tensor(W.numpy()).")

    if not TYPE_CHECKING:
        def __array__(self, *_args: object, **_options: object) -> Array:
            self.refuse("asarray")

        @property
        def requires_grad(self) -> bool:
            """False: no gradient is computed for it."""
            return False

        @requires_grad.setter
        def requires_grad(self, wanted: bool) -> None:
            if wanted:
                raise DtypeError(f"requires_grad: a tensor frozen in {self.packing} is not trained. Train "
                                 f"ag_param(W.numpy()) in its place, or low-rank factors beside it, as in "
                                 f"W @ x + B @ (A @ x).")

        def __getattr__(self, name: str) -> object:
            if name[:1] != "_" and hasattr(Tensor, name):
                raise AttributeError(f"{name}: a tensor frozen in {self.packing} has no {name}; use "
                                     f"ag_tensor(W.numpy()).{name} for its numbers.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _refusing(name: str) -> Callable[..., NoReturn]:
    return lambda x, *_others: x.refuse(name.strip("_"))


_REFUSED = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod",
    "rpow", "rmatmul", "neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "and", "or", "xor", "getitem", "setitem",
    "iter", "contains", "float", "int", "bool")
for _name in _REFUSED:
    setattr(FrozenTensor, f"__{_name}__", _refusing(f"__{_name}__"))
