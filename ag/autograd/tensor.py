"""Tensors, and the nodes that tie them into a record: what users hold.

A tensor is a buffer on a device, whether gradients are wanted for it, and the node that made it; a node is one op that
was recorded, with its inputs.  A tensor computes nothing itself: operators look up the public op of that name, which
`ag.autograd.op` registers; comparisons and `+=` are in `ag.autograd.operators`.  Reading a tensor on the host (`numpy`,
`item`, `data`, comparing) is the only thing here that waits for a device.  Knows no op and no layer.  Users and
everything above take tensors; ops make them and leave the nodes, which the tape reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ag.autograd.captured.overheard import listening
from ag.autograd.cotangent import Cotangent, shaped_like, stored_for, whole
from ag.autograd.tensor_operators import HOST_OPERATORS, TensorOperators
from ag.autograd.unchanged import any_changed, checked
from ag.autograd.watched import CHANGES, notes_here
from ag.engine.arena import now
from ag.engine.buffer import Buffer, Run
from ag.engine.dtype import DType
from ag.engine.kernels.convert import host_array
from ag.engine.kernels.elementwise import copied
from ag.engine.primitive import Array
from ag.engine.program import OPEN
from ag.engine.shape import Shape
from ag.errors import DtypeError, ShapeError, TapeError
from ag.names import Making

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Array", "ArrayLike", "Node", "PendingGrad", "Tensor", "TensorLike", "grads_of",
           "tensor_given"]

ArrayLike = Any  # whatever numpy.asarray accepts

IDS = count(1)  # of all tensors of the process


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
            launch = checked(launch, self.order, self.name, self.inputs, self.saved)
        cotangents = zip(self.inputs, self.vjp(launch, total, self.saved, self.need, *self.params), strict=True)
        return _stored(cotangents, total.dtype) if self.half or total.dtype.is_half else cotangents
    def spend(self) -> None:
        """Free what was saved; the node cannot be used again."""
        self.inputs, self.saved, self.spent = (), None, True


def _stored(cotangents: Iterable[tuple[Tensor, Cotangent | None]], made_of: DType
            ) -> Iterator[tuple[Tensor, Buffer]]:
    """Cotangents of 16-bit tensors, or made of such ones, as the tape stores them."""
    for x, g in cotangents:
        if g is not None and x.requires_grad:
            yield x, stored_for(x, whole(shaped_like(x, g)), made_of)


def grads_of(tensors: Iterable[Tensor]) -> Iterator[Tensor | PendingGrad | None]:
    """``.grad`` of each, as it was left; looking is not noted."""
    return map(_GRAD, tensors)


_GRAD: Callable[[Tensor], Tensor | PendingGrad | None] = attrgetter("_grad")


class PendingGrad:
    """A gradient that a replay left behind, which nobody has looked at yet."""

    buffer: Buffer

    def tensor(self) -> Tensor:
        """The gradient, for somebody to hold."""
        raise NotImplementedError


class Tensor(TensorOperators):
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

    __signature__ = Making()
    __slots__ = ("__weakref__", "_grad", "buffer", "id", "name", "node", "requires_grad")

    node: Node | None

    def __init__(self, buffer: Buffer, requires_grad: bool = False, node: Node | None = None) -> None:
        if type(buffer) is not Buffer:
            raise TypeError(f"Tensor: a {type(buffer).__name__} was given; tensors are made of values by "
                            f"ag_tensor(values), and parameters by ag_param(values).")
        self.id = next(IDS)
        self.buffer = buffer
        self.requires_grad = requires_grad
        self.node = node
        self._grad: Tensor | PendingGrad | None = None
        self.name: str | None = None

    def __copy__(self) -> Tensor:
        """What `__deepcopy__` gives: two tensors never share their values, nor an `id`."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        """A tensor of its own with the same values, and the gradient's; so `copy.deepcopy` copies models.

        Raises
        ------
        TapeError
            If it was computed on the tape, of which a copy would be no part.
        """
        self._refuse_on_tape("deepcopy")
        twin = Tensor(copied(self.buffer), self.requires_grad)
        memo[id(self)], twin.name = twin, self.name
        if self.grad is not None:
            twin.grad = deepcopy(self.grad, memo)
        return twin

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
        """What pickling keeps is what copying does: the values, the gradient's, and on which device they are.

        Raises
        ------
        TapeError
            If it was computed on the tape.
        """
        self._refuse_on_tape("pickle")
        return HOST_OPERATORS["unpickled"], (self.numpy(), self.dtype, self.device, self.requires_grad, self.name,
                                             self.grad)

    def _refuse_on_tape(self, function: str) -> None:
        if self.node is not None:
            raise TapeError(f"{function}: a tensor of shape {self.shape} was computed on the tape, and its copy would "
                            f"not be; copy t.detach().")

    # -------------------------------------------------------------------------------------- state

    @property
    def grad(self) -> Tensor | None:
        """For parameters: the gradients summed over all calls of `backward` since the last `zero_grad`."""
        grad = self._grad
        if isinstance(grad, PendingGrad):
            grad = self._grad = grad.tensor()
        if OPEN and (notes := notes_here()) is not None:
            return notes.grad_read(self, grad)
        return grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if OPEN and (notes := notes_here()) is not None:
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
        if (listener := listening.get()) is not None:
            listener.read(self)
        array: Array = self.buffer.backend.download(self.buffer)
        return array

    def item(self) -> float:
        """The value of a one-element tensor, an int of one of whole numbers; waits for the device."""
        return self._number("item")

    def _number(self, function: str, instead: str = "t.numpy()") -> float:
        if self.size != 1:
            raise ShapeError(f"{function}: the tensor has shape {self.shape}; only one element can become a number. "
                             f"Write {instead} for all of them.")
        value: float = self.numpy().item()
        return value

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def __bool__(self) -> bool:
        return bool(self._number("bool", "t.numpy().any() or .all()"))

    def __round__(self, digits: int | None = None) -> float:
        return round(self._number("round", "t.numpy().round(...)"), digits)

    def __format__(self, spec: str) -> str:
        return format(self._number("format"), spec) if spec else str(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("asarray: copy=False was given, and an array of a tensor is a copy of what is on its "
                             "device; leave it out.")
        array: Array = HOST_OPERATORS["array"](self)
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
        array = host_array(value.numpy() if isinstance(value, Tensor) else value, "data")
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
        if OPEN and (notes := notes_here()) is not None:
            notes.tensors((self,))
        apart = Tensor(copied(self.buffer))
        if (listener := listening.get()) is not None:
            listener.same(self, apart)
        return apart


TensorLike = Tensor | Array | float | int


def tensor_given(function: str, x: object) -> Tensor:
    """`x`, or an error if it is no tensor; for functions that need to know where a tensor comes from."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: a {type(x).__name__} was given; a tensor is required. Make one with ag_tensor.")
    return x
