"""Tensors from host values: `ag_tensor`, `ag_param`, unpickled ones, and cotangents that come from another device."""

from __future__ import annotations

from functools import cache

import numpy as np

from ag.autograd.frozen import FrozenTensor, Memory, uploaded
from ag.autograd.half import scaled, unscaled
from ag.autograd.operands import as_array, column, to_buffer
from ag.autograd.tensor import HOST_OPERATORS, ArrayLike, Tensor, TensorLike
from ag.engine.buffer import Buffer, Device
from ag.engine.device import backend_of, default_backend, default_dtype
from ag.engine.dtype import F16, F32, DType, as_dtype
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import copied
from ag.engine.kernels.packing import packing_named
from ag.engine.kernels.reduce import expand
from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import CaptureError, DeviceError, DtypeError, ShapeError


def unpickled(values: Array, dtype: str, device: str, requires_grad: bool, name: str | None,
              grad: Tensor | None) -> Tensor:
    """Restore a pickled tensor on its device, or on the default device if that is missing."""
    wanted = as_dtype(dtype, "pickle")
    backend = device_or_default(device, wanted)
    x = Tensor(to_buffer(values, backend, wanted), requires_grad)
    x.name, x.grad = name, grad
    return x


def device_or_default(device: str, dtype: DType) -> Device:
    """Return where a tensor is unpickled: its device, or the default device if that is missing."""
    try:
        backend = backend_of(device)
    except DeviceError as error:
        backend = default_backend(dtype)
        _say_elsewhere(device, backend.name, str(error))
    backend.refuse_while_recording("unpickles a tensor")
    return backend


@cache
def _say_elsewhere(name: str, instead: str, why: str) -> None:
    from ag.log import log  # which takes time to load

    log.warning("pickle: tensors that were on %s are put on %s: %s", name, instead, why)


HOST_OPERATORS["unpickled"] = unpickled


def fetch_cotangent(g: Buffer) -> Array:
    """Return the true values of a cotangent, without the loss scale; 16-bit ones in float32."""
    wide = unscaled(g) if g.dtype is F16 else converted(g, F32) if g.dtype.is_half else g
    return g.backend.download(wide)


def place_cotangent(values: Array, target: Device, dtype: DType) -> Buffer:
    """Return the cotangent of a tensor of type `dtype` from true values; f16 is multiplied with the loss scale."""
    wide = to_buffer(values, target, dtype.wide)
    return scaled(wide) if dtype is F16 else wide


def ag_tensor(data: ArrayLike, device: str | None = None, dtype: str | None = None) -> Tensor:
    """Make a tensor from host data; no gradient is tracked for it.  Reference: ggmlR ``ag_tensor``.

    Parameters
    ----------
    data : array_like or Tensor
        Numbers.  A vector of length n becomes a column of shape (n, 1), one sample; a number gets shape ().
    device : str, optional
        Default: the current default device, and for f64 the CPU where no device was named.
    dtype : str, optional
        ``"f32"``, ``"f16"``, ``"bf16"``, ``"f64"`` (CPU only), ``"i32"`` or ``"u32"``.  Default: the current default
        element type.

    Returns
    -------
    Tensor
        A copy of the data; a tensor that is already as asked for is returned itself.

    Raises
    ------
    DtypeError
        If the data are not numbers or the device cannot hold the element type, or an integer type one of the numbers.
    ShapeError, TypeError, DeviceError
        If rows differ in length, a list holds a tensor that requires a gradient, or the device is not there.

    Examples
    --------
    >>> ag.ag_tensor([1.0, 2.0, 3.0]).shape
    (3, 1)
    """
    backend, wanted = place_of("ag_tensor", dtype, device)
    if isinstance(data, Tensor):
        b = data.buffer
        backend, wanted = b.backend if device is None else backend, b.dtype if dtype is None else wanted
        if b.backend is backend and b.dtype is wanted:
            return data
    return Tensor(to_buffer(_host_numbers(data, "ag_tensor"), backend, wanted))


def _host_numbers(data: ArrayLike, function: str) -> Array:
    return data.numpy() if isinstance(data, Tensor) else column(as_array(data, function))


def as_tensor(x: TensorLike) -> Tensor:
    """Return a tensor; of host values, that of `ag_tensor`."""
    return x if isinstance(x, Tensor) else ag_tensor(x)


def place_of(function: str, dtype: str | None, device: str | None, beside: Tensor | None = None
             ) -> tuple[Device, DType]:
    """Return where a tensor is made, and its element type; None stands for that of another, or the default."""
    if beside is not None:
        wanted = beside.buffer.dtype if dtype is None else as_dtype(dtype, function)
        return beside.buffer.backend if device is None else backend_of(device), wanted
    wanted = default_dtype() if dtype is None else as_dtype(dtype, function)
    return default_backend(wanted) if device is None else backend_of(device), wanted


def constant(array: Array, backend: Device, dtype: DType) -> Tensor:
    """Return a tensor of numbers that the program names: in a captured step, they are the same in every replay."""
    if backend.recording is None:
        return Tensor(to_buffer(array, backend, dtype))
    return Tensor(copied(backend.constant(array, dtype)))


def filled(shape: Shape, value: float, backend: Device, dtype: DType) -> Tensor:
    """Return a tensor of one number."""
    if dtype.is_half:
        return constant(np.full(shape, value), backend, dtype)
    return Tensor(backend.launch(expand, backend.constant(value, dtype), shape=shape, factor=1.0))


def ag_param(data: ArrayLike, device: str | None = None, dtype: str | None = None) -> Tensor:
    """Make a parameter: a tensor for which `backward` computes a gradient, in float32 if it has 16 bits.

    Reference: ggmlR ``ag_param``.

    Parameters
    ----------
    data : array_like or Tensor
        Initial values, copied.
    device, dtype : str, optional
        As of `ag_tensor`; a floating type.

    Returns
    -------
    Tensor

    Raises
    ------
    CaptureError
        Inside a captured step: a replay would not make a new parameter.

    Examples
    --------
    >>> ag.ag_param([[1.0, 2.0]]).requires_grad
    True
    """
    backend, wanted = place_of("ag_param", dtype, device)
    if backend.recording is not None:
        backend.recording.refuse(CaptureError(
            "ag_param: a parameter is created inside a captured step; create it before the step."))
    if not wanted.is_float:
        raise DtypeError(f"ag_param: element type {wanted} has no gradients; use 'f32', 'f16', 'bf16', or 'f64' on "
                         f"the CPU.")
    return Tensor(to_buffer(_host_numbers(data, "ag_param"), backend, wanted), requires_grad=True)


def restored(blocks: Array, packing: str, device: str, turned: bool) -> FrozenTensor:
    """Restore a pickled tensor on its device, or on the default device if that is missing."""
    found = ag_frozen(blocks, packing, device_or_default(device, F32).name)
    return found.T if turned else found


HOST_OPERATORS["restored"] = restored


def ag_frozen(data: ArrayLike, packing: str, device: str | None = None) -> FrozenTensor:
    """Make a matrix that is never trained, in few bits: weights of a model that is fine-tuned, or only runs.

    Rows are cut into blocks of 32 numbers (of 256 for q4_k and q6_k); bf16 and f16 have none.

    Parameters
    ----------
    data : array_like or Tensor of shape (rows, columns), or blocks
        Numbers, which are rounded as by the package ``gguf``; or an array of type uint8 that has in every row the bytes
        of its blocks, as a GGUF file has them: they are kept to the bit.
    packing : str
        ``"bf16"``, ``"f16"``, ``"q8_0"``, ``"q4_0"`` or ``"q4_1"``; of blocks also ``"q4_k"`` or ``"q6_k"``.
    device : str, optional
        As of `ag_tensor`.  Ops on other devices copy it there when they first need it.

    Returns
    -------
    FrozenTensor

    Raises
    ------
    DtypeError, ShapeError, ValueError
        If the packing is unknown, rows are no whole blocks, or numbers are not finite or too large.

    Examples
    --------
    >>> W = ag.ag_frozen([[1.0] * 32] * 2, "q4_0")
    >>> W.shape, W.nbytes, (W @ ([1.0] * 32)).numpy().tolist()
    ((2, 32), 36, [[32.0], [32.0]])
    """
    kind, backend = packing_named("ag_frozen", packing), place_of("ag_frozen", "f32", device)[0]
    if backend.recording is not None:
        backend.recording.refuse(CaptureError(
            "ag_frozen: a frozen tensor is made inside a captured step; make it before the step."))
    array = data.numpy() if isinstance(data, Tensor) else as_array(data, "ag_frozen")
    if array.ndim != 2:
        raise ShapeError(f"ag_frozen: data of shape {array.shape} was given; a matrix is required, or blocks as bytes "
                         f"in rows.")
    try:
        if array.dtype == np.uint8:
            words, inner = kind.from_blocks(array)
        else:
            kind.check("ag_frozen", inner := array.shape[1])
            words = kind.pack(array)
    except (ValueError, DtypeError) as error:
        if str(error).startswith("ag_frozen"):
            raise
        raise type(error)(f"ag_frozen: {error}") from None
    return FrozenTensor(Memory(uploaded(words, backend)), kind, (len(array), inner))


def is_ag_tensor(x: object) -> bool:
    """Return whether `x` is a tensor of this library, as ggmlR ``is_ag_tensor``.

    Parameters
    ----------
    x : object

    Returns
    -------
    bool

    Examples
    --------
    >>> ag.is_ag_tensor(3.0)
    False
    """
    return isinstance(x, Tensor)
