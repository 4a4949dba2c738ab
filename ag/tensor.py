"""Tensors: what users hold.

A tensor is a buffer on a device, whether gradients are wanted for it, and the tape node that made it.  It computes
nothing itself: operators look up the public op of that name, which `ag.ops` registers.  Reading a tensor on the
host (`numpy`, `item`, `data`) is the only thing here that waits for a device.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ag.backend import Backend, Buffer
from ag.device import backend_of, default_backend, default_dtype
from ag.dtype import DType, as_dtype
from ag.errors import CaptureError, DtypeError, ShapeError
from ag.shape import Shape

if TYPE_CHECKING:
    from ag.tape import Node

__all__ = ["OPS", "ArrayLike", "Tensor", "TensorLike", "ag_param", "ag_tensor", "is_ag_tensor", "lift", "to_buffer"]

Array = npt.NDArray[Any]
ArrayLike = Any  # whatever numpy.asarray accepts

OPS: dict[str, Any] = {}  # public ops by name, filled by `ag.op` at import and constant afterwards
_ids = count(1)
_CONSTANTS_KEPT = 256  # per device; a training step uses a handful


class Tensor:
    """An n-dimensional array on a device.

    Made by `ag_tensor`, `ag_param` and the ops; not directly.

    Attributes
    ----------
    id : int
        Unique in the process.
    requires_grad : bool
        Whether `backward` computes a gradient for it or through it.
    grad : Tensor or None
        For parameters: the gradients summed over all calls of `backward` since the last `zero_grad`.
    name : str or None
        For parameters of a model: the name it has there.
    """

    __slots__ = ("__weakref__", "buffer", "grad", "id", "name", "node", "requires_grad")

    def __init__(self, buffer: Buffer, requires_grad: bool = False, node: Node | None = None) -> None:
        self.id = next(_ids)
        self.buffer = buffer
        self.requires_grad = requires_grad
        self.node = node
        self.grad: Tensor | None = None
        self.name: str | None = None

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
        """Short name of the element type, such as ``"f32"``."""
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
        """A host copy; waits for the device."""
        array: Array = self.buffer.backend.download(self.buffer)
        return array

    def item(self) -> float:
        """The value of a one-element tensor; waits for the device."""
        if self.size != 1:
            raise ShapeError(f"item: the tensor has shape {self.shape}; only one element can become a number.")
        return float(self.numpy().reshape(()))

    def __float__(self) -> float:
        return self.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    @property
    def data(self) -> Array:
        """The values as a numpy array (a host copy); assigning copies an array of the same shape in place."""
        return self.numpy()

    @data.setter
    def data(self, value: ArrayLike) -> None:
        array = np.asarray(value)
        if array.shape != self.shape:
            raise ShapeError(f"data: an array of shape {array.shape} was assigned to a tensor of shape {self.shape}; "
                             f"the shapes must be equal.")
        backend = self.buffer.backend
        backend.refuse_while_recording("assigns to a tensor's data")
        backend.upload(array, self.buffer)

    def detach(self) -> Tensor:
        """The same values, cut off from the tape."""
        return Tensor(self.buffer)

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

    __array_ufunc__ = None  # numpy_array * tensor calls Tensor.__rmul__ instead of looping over elements

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return _call("ag_transpose", self)

    def reshape(self, *shape: int) -> Tensor:
        """`ag_reshape` as a method."""
        return _call("ag_reshape", self, *shape)

    def sum(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
        """`ag_sum` as a method."""
        return _call("ag_sum", self, dim, keepdim)

    def mean(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
        """`ag_mean` as a method."""
        return _call("ag_mean", self, dim, keepdim)


TensorLike = Tensor | npt.NDArray[Any] | float | int


def _call(name: str, *args: Any) -> Tensor:
    result: Tensor = OPS[name](*args)
    return result


# ---------------------------------------------------------------------------------------------- from host values


def to_buffer(array: Array, backend: Backend, dtype: DType) -> Buffer:
    """A fresh buffer with the values of a host array, or the input slot it stands for in a captured step."""
    recording = backend.recording
    if recording is not None and recording.on_upload is not None:
        slot = recording.on_upload(array, dtype)
        if slot is not None:
            return slot
    buffer = backend.alloc(array.shape, dtype)
    backend.upload(array, buffer)
    return buffer


def lift(value: Any, backend: Backend, dtype: DType, function: str) -> Tensor:
    """`value` as a tensor on `backend`; numbers become shared constants."""
    if isinstance(value, (int, float)):
        constants = backend.__dict__.setdefault("_constants", {})
        found: Buffer | None = constants.get((value, dtype))
        if found is None:
            if len(constants) >= _CONSTANTS_KEPT:
                constants.clear()
            found = backend.alloc((), dtype)
            backend.upload(np.asarray(value), found)
            constants[value, dtype] = found
        return Tensor(found)
    return Tensor(to_buffer(_as_array(value, function), backend, dtype))


def _as_array(data: ArrayLike, function: str) -> Array:
    array = np.asarray(data)
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: data of type {array.dtype} was given; numbers are required.")
    return array


def ag_tensor(data: ArrayLike, device: str | None = None, dtype: str | None = None) -> Tensor:
    """A tensor from host data; no gradient is tracked for it.

    Parameters
    ----------
    data : array_like or Tensor
        Numbers.  A vector of length n becomes a column of shape (n, 1), one sample; a number gets shape ().
    device : str, optional
        Default: the current default device.
    dtype : str, optional
        ``"f32"``, ``"f64"`` (CPU only) or ``"i32"``.  Default: the current default element type.

    Returns
    -------
    Tensor
        A copy of the data; a tensor that is already as asked for is returned itself.

    Raises
    ------
    DtypeError
        If the data are not numbers or the device cannot hold the element type.
    DeviceError
        If the device is unknown or not there.

    References
    ----------
    ggmlR ``ag_tensor``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_tensor([1.0, 2.0, 3.0]).shape
    (3, 1)
    """
    backend = default_backend() if device is None else backend_of(device)
    wanted = default_dtype() if dtype is None else as_dtype(dtype, "ag_tensor")
    if isinstance(data, Tensor):
        same_dtype = dtype is None or data.buffer.dtype is wanted
        if same_dtype and (device is None or data.buffer.backend is backend):
            return data
        backend = data.buffer.backend if device is None else backend
        return Tensor(to_buffer(data.numpy(), backend, data.buffer.dtype if dtype is None else wanted))
    buffer = to_buffer(_as_array(data, "ag_tensor"), backend, wanted)
    return Tensor(buffer.view((buffer.size, 1)) if buffer.ndim == 1 else buffer)


def ag_param(data: ArrayLike, device: str | None = None, dtype: str | None = None) -> Tensor:
    """A parameter: a tensor for which `backward` computes a gradient.

    Parameters
    ----------
    data : array_like or Tensor
        Initial values, copied; a vector of length n becomes a column of shape (n, 1).
    device : str, optional
        Default: the current default device.
    dtype : str, optional
        ``"f32"``, or ``"f64"`` on CPU devices.  Default: the current default element type.

    Returns
    -------
    Tensor
        With ``requires_grad`` set.

    Raises
    ------
    DtypeError
        If the element type is not a floating type.
    CaptureError
        Inside a captured step: a replay would not make a new parameter.

    References
    ----------
    ggmlR ``ag_param``.

    Examples
    --------
    >>> import ag
    >>> W = ag.ag_param([[1.0, 2.0]])
    >>> W.requires_grad
    True
    """
    backend = default_backend() if device is None else backend_of(device)
    wanted = default_dtype() if dtype is None else as_dtype(dtype, "ag_param")
    if backend.recording is not None:
        raise CaptureError("ag_param: a parameter is created inside a captured step; create it before the step.")
    if not wanted.is_float:
        raise DtypeError(f"ag_param: element type {wanted} has no gradients; use 'f32', or 'f64' on the CPU.")
    array = data.numpy() if isinstance(data, Tensor) else _as_array(data, "ag_param")
    return Tensor(to_buffer(array.reshape(-1, 1) if array.ndim == 1 else array, backend, wanted), requires_grad=True)


def is_ag_tensor(x: object) -> bool:
    """Whether `x` is a tensor of this library.

    Parameters
    ----------
    x : object

    Returns
    -------
    bool

    References
    ----------
    ggmlR ``is_ag_tensor``.

    Examples
    --------
    >>> import ag
    >>> ag.is_ag_tensor(3.0)
    False
    """
    return isinstance(x, Tensor)
