"""Tensors, and the nodes that tie them into a record: what users hold.

A tensor is a buffer on a device, whether gradients are wanted for it, and the node that made it; a node is one op
that was recorded, with its inputs.  A tensor computes nothing itself: operators look up the public op of that name,
which `ag.autograd.op` registers; comparisons and `+=` are in `ag.autograd.operators`.  Reading a tensor on the host
(`numpy`, `item`, `data`, comparing) is the only thing here that waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from ag.autograd.cotangent import Cotangent, shaped_like, stored_for, whole
from ag.autograd.unchanged import Checked, any_changed, buffers_in, refuse_changed
from ag.autograd.watched import CHANGES, NOTES
from ag.engine.arena import now
from ag.engine.buffer import Buffer, Run
from ag.engine.dtype import DType
from ag.engine.kernels.elementwise import copied
from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import DtypeError, ShapeError

__all__ = ["HOST_OPERATORS", "OPS", "Array", "ArrayLike", "Node", "PendingGrad", "Tensor", "TensorLike",
           "tensor_given"]

ArrayLike = Any  # whatever numpy.asarray accepts

# Public ops by name, filled by `ag.autograd.op` at import and constant afterwards.
OPS: dict[str, Callable[..., Tensor]] = {}
# Operators that are no ops, likewise by `ag.autograd.operators`.
HOST_OPERATORS: dict[str, Callable[..., Any]] = {}
_ids = count(1)


class Node:
    """One op that was recorded: its rule, inputs, and what the rule wants back.

    Attributes
    ----------
    order : int
        Position in time; an op always comes after its inputs.
    name : str
        Name of the op, for messages.
    vjp : callable
        ``vjp(launch, cotangent, saved, need, *params)``: one cotangent, or None, per input.
    inputs : tuple of Tensor
    need : tuple of bool
        Which inputs want a cotangent.
    saved : object
        What the forward pass kept for the rule.
    params : tuple
        The op's other arguments.
    half : bool
        Whether an input has 16 bits.
    """

    __slots__ = ("half", "inputs", "name", "need", "order", "params", "saved", "spent", "vjp")

    def __init__(self, name: str, vjp: Callable[..., tuple[Cotangent | None, ...]], inputs: tuple[Tensor, ...],
                 need: tuple[bool, ...], saved: Any, params: tuple[object, ...], half: bool = False) -> None:
        self.order = now()
        self.name = name
        self.vjp = vjp
        self.inputs = inputs
        self.need = need
        self.saved = saved
        self.params = params
        self.half = half
        self.spent = False

    def __lt__(self, other: Node) -> bool:
        return self.order > other.order  # a heap of nodes yields the newest first

    def pull(self, total: Buffer) -> Iterable[tuple[Tensor, Cotangent | None]]:
        """The inputs, each with the cotangent that follows from the output's, or None."""
        launch: Run = total.backend.launch
        if any_changed(self.saved, self.order):
            launch = self._checked(launch)
        cotangents = zip(self.inputs, self.vjp(launch, total, self.saved, self.need, *self.params), strict=True)
        return _stored(cotangents, total.dtype) if self.half or total.dtype.is_half else cotangents

    def _checked(self, launch: Run) -> Run:
        """A launch that refuses what was changed since the op was recorded."""
        if self.half:  # whose rules work on what was widened before
            refuse_changed(buffers_in(self.saved), self.order, self.name, self.inputs)
        return Checked(launch, self.order, self.name, self.inputs)

    def spend(self) -> None:
        """Free what was saved; the node cannot be used again."""
        self.inputs, self.saved, self.spent = (), None, True


def _stored(cotangents: Iterable[tuple[Tensor, Cotangent | None]], made_of: DType
            ) -> Iterator[tuple[Tensor, Buffer]]:
    """Cotangents of 16-bit tensors, or made of such ones, as the tape stores them."""
    for x, g in cotangents:
        if g is not None and x.requires_grad:
            yield x, stored_for(x, whole(shaped_like(x, g)), made_of)


class PendingGrad:
    """A gradient that a replay left behind, which nobody has looked at yet."""

    buffer: Buffer

    def tensor(self) -> Tensor:
        """The gradient, for somebody to hold."""
        raise NotImplementedError


class Tensor:
    """An n-dimensional array on a device.

    Made by `ag_tensor`, `ag_param` and the ops; not directly.

    Operators never change a tensor but a parameter: ``t += 1`` makes a new tensor and calls it `t`, as with numbers,
    and who else holds the old one keeps its values.  ``p -= 0.1 * g`` on a parameter changes it in place, and is
    refused inside `with_grad_tape`.  Comparisons (``==``, ``<``, ...) go element by element and give a numpy array of
    truth values, which waits for the device; as keys of a dict tensors are told apart by identity.

    Attributes
    ----------
    id : int
        Unique in the process.
    requires_grad : bool
        Whether `backward` computes a gradient for it or through it.
    buffer : Buffer
        Where the values are; `rebind` puts them elsewhere.
    grad : Tensor or None
        For parameters: the gradients summed over all calls of `backward` since the last `zero_grad`.
    name : str or None
        For parameters of a model: the name it has there.
    """

    __slots__ = ("__weakref__", "_grad", "buffer", "id", "name", "node", "requires_grad")

    def __init__(self, buffer: Buffer, requires_grad: bool = False, node: Node | None = None) -> None:
        self.id = next(_ids)
        self.buffer = buffer
        self.requires_grad = requires_grad
        self.node = node
        self._grad: Tensor | PendingGrad | None = None
        self.name: str | None = None

    # -------------------------------------------------------------------------------------- state

    @property
    def grad(self) -> Tensor | None:
        """For parameters: the gradients summed over all calls of `backward` since the last `zero_grad`."""
        grad = self._grad
        if isinstance(grad, PendingGrad):
            grad = self._grad = grad.tensor()
        if NOTES and (notes := NOTES.get(get_ident())) is not None:
            return notes.grad_read(self, grad)
        return grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if NOTES and (notes := NOTES.get(get_ident())) is not None:
            notes.grad_written(self)
        self._grad = value

    def set_grad(self, grad: Tensor | PendingGrad | None) -> None:
        """Set ``.grad`` on behalf of a captured step, which is not noted."""
        self._grad = grad

    def peek_grad(self) -> Tensor | PendingGrad | None:
        """``.grad`` as it was left; looking is not noted."""
        return self._grad

    def rebind(self, buffer: Buffer) -> None:
        """Let the values be those of another buffer of the same shape, in an optimizer or on another device."""
        self.buffer = buffer
        CHANGES.add(self, "buffer")

    # -------------------------------------------------------------------------------------- description

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        return self.buffer.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.buffer.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.buffer.size

    @property
    def dtype(self) -> str:
        """Short name of the element type, such as ``"f32"``; what a device cannot hold is refused, never replaced."""
        return self.buffer.dtype.name

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.buffer.backend.name

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a tensor of shape () has no axes; use .size.")
        return self.shape[0]

    def __repr__(self) -> str:
        kind = "param" if self.requires_grad and self.node is None else "tensor"
        head = f"ag_{kind} {self.shape} {self.dtype} on {self.device}"
        if self.buffer.backend.recording is not None:
            return f"<{head}, being captured>"
        return f"<{head}\n{np.array2string(self.numpy(), precision=4, threshold=100)}>"

    # -------------------------------------------------------------------------------------- host access

    def numpy(self) -> Array:
        """A host copy to keep and to change, in float32 for bfloat16, which numpy does not know; waits for the device.

        What becomes of the copy changes nothing on the device: assign to `data` for that.
        """
        array: Array = self.buffer.backend.download(self.buffer)
        return array

    def item(self) -> float:
        """The value of a one-element tensor; waits for the device."""
        if self.size != 1:
            raise ShapeError(f"item: the tensor has shape {self.shape}; only one element can become a number.")
        return float(self.numpy().reshape(()))

    def __float__(self) -> float:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __round__(self, digits: int | None = None) -> float:
        return round(self.item(), digits)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> object:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    @property
    def data(self) -> Array:
        """The values as a numpy array: a host copy that cannot be written to, on every device.

        ``t.data[0, 0] = 1`` is an error, as it would not reach the device.  Assign a whole array of the same shape,
        which is copied into the tensor's memory: ``t.data = t.data * 2``; `numpy` gives a copy to change.
        """
        array = self.numpy()
        array.flags.writeable = False
        return array

    @data.setter
    def data(self, value: ArrayLike) -> None:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise DtypeError(f"data: an array of type {array.dtype} was assigned; numbers are required.")
        if array.ndim == 1 and self.shape == (array.size, 1):
            array = array.reshape(self.shape)  # a vector is a column, as in ag_tensor
        if array.shape != self.shape:
            raise ShapeError(f"data: an array of shape {array.shape} was assigned to a tensor of shape {self.shape}; "
                             f"the shapes must be equal.")
        backend = self.buffer.backend
        backend.refuse_while_recording("assigns to a tensor's data")
        backend.upload(array, self.buffer)

    def detach(self) -> Tensor:
        """A copy of the values, cut off from the tape; what happens to one of the two does not change the other."""
        with self.buffer.backend.quiet():
            return Tensor(copied(self.buffer))

    # -------------------------------------------------------------------------------------- comparison

    __hash__ = object.__hash__  # by identity, as tensors are keys

    def __eq__(self, other: object) -> Any:
        return HOST_OPERATORS["compare"](np.equal, self, other)

    def __ne__(self, other: object) -> Any:
        return HOST_OPERATORS["compare"](np.not_equal, self, other)

    def __lt__(self, other: TensorLike) -> Any:
        return HOST_OPERATORS["compare"](np.less, self, other)

    def __le__(self, other: TensorLike) -> Any:
        return HOST_OPERATORS["compare"](np.less_equal, self, other)

    def __gt__(self, other: TensorLike) -> Any:
        return HOST_OPERATORS["compare"](np.greater, self, other)

    def __ge__(self, other: TensorLike) -> Any:
        return HOST_OPERATORS["compare"](np.greater_equal, self, other)

    def __contains__(self, value: object) -> bool:
        return bool(HOST_OPERATORS["contains"](self, value))

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iter: a tensor of shape () has no axes; use .item().")
        return (self[i] for i in range(len(self)))

    # -------------------------------------------------------------------------------------- arithmetic

    def __add__(self, other: TensorLike) -> Tensor:
        return _call("ag_add", self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return _call("ag_add", other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return _call("ag_sub", self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return _call("ag_sub", other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return _call("ag_mul", self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return _call("ag_mul", other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return _call("ag_div", self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return _call("ag_div", other, self)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return _call("ag_matmul", self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return _call("ag_matmul", other, self)

    def __pow__(self, p: float) -> Tensor:
        return _call("ag_pow", self, p)

    def __neg__(self) -> Tensor:
        return _call("ag_scale", self, -1.0)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return _call("ag_abs", self)

    def __iadd__(self, other: TensorLike) -> Tensor:
        return _changed("+=", self, self + other)

    def __isub__(self, other: TensorLike) -> Tensor:
        return _changed("-=", self, self - other)

    def __imul__(self, other: TensorLike) -> Tensor:
        return _changed("*=", self, self * other)

    def __itruediv__(self, other: TensorLike) -> Tensor:
        return _changed("/=", self, self / other)

    def __imatmul__(self, other: TensorLike) -> Tensor:
        return _changed("@=", self, self @ other)

    def __ipow__(self, p: float) -> Tensor:
        return _changed("**=", self, self**p)

    __array_ufunc__ = None  # numpy_array * tensor calls Tensor.__rmul__ instead of looping over elements

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return _call("ag_transpose", self)

    def __getitem__(self, key: object) -> Tensor:
        return _call("ag_slice", self, key)

    def reshape(self, *shape: int) -> Tensor:
        """`ag_reshape` as a method."""
        return _call("ag_reshape", self, *shape)

    def astype(self, dtype: str) -> Tensor:
        """`ag_cast` as a method."""
        return _call("ag_cast", self, dtype)

    def sum(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
        """`ag_sum` as a method."""
        return _call("ag_sum", self, dim, keepdim)

    def mean(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
        """`ag_mean` as a method."""
        return _call("ag_mean", self, dim, keepdim)


TensorLike = Tensor | Array | float | int


def tensor_given(function: str, x: object) -> Tensor:
    """`x`, or an error if it is no tensor; for functions that need to know where a tensor comes from."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: a {type(x).__name__} was given; a tensor is required. Make one with ag_tensor.")
    return x


def _call(name: str, *args: object) -> Tensor:
    return OPS[name](*args)


def _changed(operator: str, x: Tensor, result: Tensor) -> Tensor:
    """What `x` is after an operator such as ``+=`` with that result: a parameter is changed, any other name rebound."""
    if not x.requires_grad or x.node is not None:
        return result
    changed: Tensor = HOST_OPERATORS["change"](operator, x, result)
    return changed
