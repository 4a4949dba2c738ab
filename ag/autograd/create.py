"""Tensors from host values: `ag_tensor`, `ag_param`, and how ops lift numbers and arrays to a device.

Every upload passes `to_buffer`, where a captured step puts an input slot in place of the array.  Numbers become
constants, which a device shares.  Cotangents move between devices through the host, as true values without loss scale.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np

from ag.autograd.half import scaled, unscaled
from ag.autograd.tensor import HOST_OPERATORS, ArrayLike, Tensor, TensorLike, to_array
from ag.engine.arena import now
from ag.engine.buffer import Buffer, Device, fix
from ag.engine.device import backend_of, default_backend, default_dtype
from ag.engine.dtype import F16, F32, DType, as_dtype
from ag.engine.interpreter import current
from ag.engine.kernels.convert import Placeholder, array_to_upload, converted, host_array
from ag.engine.primitive import Array
from ag.errors import CaptureError, DeviceError, DtypeError

_CONSTANTS_KEPT = 256  # per device; a training step uses a handful


def to_buffer(array: Array, backend: Device, dtype: DType) -> Buffer:
    """Upload a host array, or return the input slot that it stands for in a captured step."""
    if (here := current()) is not None and (slot := here.uploaded(array, dtype, backend)) is not None:
        return cast(Buffer, slot)
    buffer = backend.alloc(array.shape, dtype)
    buffer.block.made = 0  # the upload must not count as a change of older memory
    backend.upload(array, buffer)
    buffer.block.made = now()
    return buffer


def lift(value: object, backend: Device, dtype: DType, function: str) -> Tensor:
    """Return `value` as a tensor on `backend`; numbers become shared constants."""
    if isinstance(value, (int, float)) and not isinstance(value, Placeholder):
        constants = backend.constants
        key = value or str(value), dtype  # 0.0 and -0.0 are equal, and not the same
        constant = constants.get(key)
        if constant is None:
            if len(constants) >= _CONSTANTS_KEPT:
                constants.clear()
            try:
                number = float(value)
            except OverflowError:
                raise DtypeError(f"{function}: a whole number beyond the range of floats was given; a smaller one is "
                                 f"required.") from None
            constant = backend.alloc((), dtype)
            backend.upload(np.asarray(value), constant)
            constant.constant = number
            fix(constant)
            constants[key] = constant
        return Tensor(constant)
    return Tensor(to_buffer(as_array(value, function), backend, dtype))


def as_array(data: ArrayLike, function: str) -> Array:
    """Return host data as an array of numbers."""
    array = to_array(_without_variables, data, function)
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: data of type {array.dtype} was given; numbers are required.")
    return array


def host_values(x: object, function: str) -> Array:
    """Return the values of a tensor, an array or nested lists on the host."""
    return x.numpy() if isinstance(x, Tensor) else to_array(host_array, x, function)


def column(array: Array) -> Array:
    """Return a vector as a column."""
    return array.reshape(-1, 1) if array.ndim == 1 else array


def _without_variables(data: object, function: str) -> Array:
    if isinstance(data, (list, tuple)) and _holds_a_variable(data):
        raise TypeError(f"{function}: a {type(data).__name__} was given that holds a tensor which requires a gradient; "
                        f"in an array it would get none. Join tensors with ag_concat, or use their t.numpy().")
    return array_to_upload(data, function)


def _holds_a_variable(data: list[Any] | tuple[Any, ...]) -> bool:
    kinds = set(map(type, data))
    if Tensor in kinds and any(type(x) is Tensor and x.requires_grad for x in data):
        return True
    return not kinds.isdisjoint((list, tuple)) and any(type(x) in (list, tuple) and _holds_a_variable(x) for x in data)


def as_input(x: TensorLike, weight: Tensor) -> Tensor:
    """Return `x`; host values become a tensor on the device and of the type of a layer's `weight`."""
    return x if isinstance(x, Tensor) else ag_tensor(x, weight.device, weight.dtype)


def unpickled(values: Array, dtype: str, device: str, requires_grad: bool, name: str | None,
              grad: Tensor | None) -> Tensor:
    """Restore a pickled tensor on its device, or on the default device if that is missing."""
    backend = _device_or_default(device)
    backend.refuse_while_recording("unpickles a tensor")
    x = Tensor(to_buffer(values, backend, as_dtype(dtype, "pickle")), requires_grad)
    x.name, x.grad = name, grad
    return x


def _device_or_default(name: str) -> Device:
    try:
        return backend_of(name)
    except DeviceError as error:
        backend = default_backend()
        _say_elsewhere(name, backend.name, str(error))
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
    wide = to_buffer(values, target, F32 if dtype.is_half else dtype)
    return scaled(wide) if dtype is F16 else wide


def move_cotangent(g: Buffer, target: Device) -> Buffer:
    """Copy a cotangent to another device, which may have another loss scale."""
    if g.dtype is F16:
        return place_cotangent(fetch_cotangent(g), target, F16)
    return to_buffer(g.backend.download(g), target, g.dtype)


def ag_tensor(data: ArrayLike, device: str | None = None, dtype: str | None = None) -> Tensor:
    """Make a tensor from host data; no gradient is tracked for it.

    Parameters
    ----------
    data : array_like or Tensor
        Numbers.  A vector of length n becomes a column of shape (n, 1), one sample; a number gets shape ().
    device : str, optional
        Default: the current default device.
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
    TypeError
        If a list holds a tensor that requires a gradient, which would be lost.
    ShapeError
        If nested lists have rows of different lengths.
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
    backend: Device = default_backend() if device is None else backend_of(device)
    wanted = default_dtype() if dtype is None else as_dtype(dtype, "ag_tensor")
    if isinstance(data, Tensor):
        same_dtype = dtype is None or data.buffer.dtype is wanted
        if same_dtype and (device is None or data.buffer.backend is backend):
            return data
        backend = data.buffer.backend if device is None else backend
        return Tensor(to_buffer(data.numpy(), backend, data.buffer.dtype if dtype is None else wanted))
    return Tensor(to_buffer(column(as_array(data, "ag_tensor")), backend, wanted))


def ag_param(data: ArrayLike, device: str | None = None, dtype: str | None = None) -> Tensor:
    """Make a parameter: a tensor for which `backward` computes a gradient.

    Parameters
    ----------
    data : array_like or Tensor
        Initial values, copied; a vector of length n becomes a column of shape (n, 1).
    device : str, optional
        Default: the current default device.
    dtype : str, optional
        ``"f32"``, ``"f16"``, ``"bf16"``, or ``"f64"`` on CPU devices.  Default: the current default element type.

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

    Notes
    -----
    A parameter of a 16-bit type gets its gradient in float32, and an optimizer keeps its digits in float32.

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
        backend.recording.refuse(CaptureError(
            "ag_param: a parameter is created inside a captured step; create it before the step."))
    if not wanted.is_float:
        raise DtypeError(f"ag_param: element type {wanted} has no gradients; use 'f32', 'f16', 'bf16', or 'f64' on "
                         f"the CPU.")
    array = data.numpy() if isinstance(data, Tensor) else column(as_array(data, "ag_param"))
    return Tensor(to_buffer(array, backend, wanted), requires_grad=True)


def is_ag_tensor(x: object) -> bool:
    """Return whether `x` is a tensor of this library.

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
