"""What callers pass to ops, made ready for their rules: tensors on one device and of one element type, and numbers.

The rule of vectors stands here (`_as_vectors`): what the host gives as a vector is a column, as in `ag_tensor`, and
never makes an outer product of what was meant to be added element by element.  `ag.autograd.op` calls this for every
op; it knows no op itself and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from numbers import Real
from typing import Any, Literal, NoReturn, cast

import numpy as np

from ag.autograd.create import as_array, lift
from ag.autograd.tensor import IDS, Tensor
from ag.engine.buffer import Buffer, Device
from ag.engine.device import default_backend, default_dtype
from ag.engine.dtype import F32, DType
from ag.errors import DeviceError, DtypeError, ShapeError

try:
    _code = import_module(f"{__package__}._operands").Operands(Tensor, Buffer, IDS)
except ImportError:  # there was no compiler
    _code = None

__all__ = ["Vectors", "alike", "closed_or_elsewhere", "number_given", "operands_on_one_device", "plain_tensor",
           "refuse_integers", "vector_beside"]

Args = tuple[object, ...]

# ``operands.c``: device, type, buffers, operands and other arguments of a call, where so many operands are tensors that
# are alike; None for anything else, and always without a compiler.  And ``Tensor(buffer)`` in half the time.
alike: Callable[[Args, int], tuple[Device, DType, list[Buffer], tuple[Tensor, ...], Args] | None] = (
    _code.alike if _code is not None else lambda args, operands: None)
plain_tensor: Callable[[Buffer], Tensor] = _code.tensor if _code is not None else Tensor

# What a host vector is among the operands of an op: a column; a column or a row, as what it is combined with element by
# element says; a column but for the first operand, which is a matrix.
Vectors = Literal["column", "broadcast", "second"]


def number_given(function: str, argument: str, value: object) -> float:
    """A number that an op takes for a constant, as a float.

    Raises
    ------
    TypeError
        If it is a tensor, which would get no gradient, or no number.
    """
    if type(value) is float or type(value) is int:
        return _as_float(function, argument, value)
    if isinstance(value, Tensor):
        raise TypeError(f"{function}: {argument} is a tensor of shape {value.shape}; a number is required, to which no "
                        f"gradient flows. Use float(t) for a constant, or compute with ag_mul, ag_exp, ... instead.")
    is_array = isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"
    if not (is_array or isinstance(value, (Real, np.bool_))):
        raise TypeError(f"{function}: {argument} is {value!r:.80}; a number is required.")
    return _as_float(function, argument, value)


def _as_float(function: str, argument: str, value: object) -> float:
    try:
        return float(cast(float, value))
    except OverflowError:
        raise ValueError(f"{function}: {argument} is a whole number beyond the range of floats; a smaller one is "
                         f"required.") from None


def vector_beside(function: str, n: int, others: list[tuple[int, ...]]) -> bool:
    """Whether a host vector of `n` numbers is a column, else a row, where it is combined element by element.

    Beside columns it is a column, beside arrays of one axis and beside matrices whose rows it fits it has one axis.

    Raises
    ------
    ShapeError
        If it could be either.
    """
    for shape in others:
        if len(shape) > 1 and n > 1 and shape[-1] == n and n in shape[:-1]:
            raise ShapeError(f"{function}: operands are a vector of {n} numbers and {shape}, where it could be a row "
                             f"or a column; give it the shape (1, {n}) or ({n}, 1).")
    return all(len(shape) != 1 and (not shape or shape[-1] == 1) for shape in others)


def _as_vectors(function: str, operands: tuple[object, ...], vectors: Vectors) -> tuple[object, ...]:
    """The operands, with host arrays of one axis as columns where they are columns."""
    arrays = [x if isinstance(x, (Tensor, int, float)) else as_array(x, function) for x in operands]
    flat = [i for i, x in enumerate(arrays) if isinstance(x, np.ndarray) and x.ndim == 1]
    others = [x.shape for i, x in enumerate(arrays) if isinstance(x, (Tensor, np.ndarray)) and i not in flat]
    if vectors == "second":
        flat = [i for i in flat if i > 0]
    elif any(len(shape) == 1 for shape in others):
        return tuple(arrays)
    for i in flat:
        x = cast("np.ndarray[tuple[int], np.dtype[np.generic]]", arrays[i])
        if vectors != "broadcast" or vector_beside(function, len(x), others):
            arrays[i] = x.reshape(-1, 1)
    return tuple(arrays)


def closed_or_elsewhere(function: str, first: Device, second: Device) -> DeviceError:
    """The error about operands on two devices; one of them may be closed, which is raised."""
    for device in (first, second):
        device.check_open()
    return DeviceError(f"{function}: operands are on {first.name} and {second.name}; "
                       f"move one with ag_to_device first.")


def operands_on_one_device(
    function: str, operands: tuple[Any, ...], mixed: bool = False, integers: bool = False, vectors: Vectors = "column",
) -> tuple[Device, tuple[Tensor, ...], DType]:
    """The device shared by the tensors among `operands`, everything as tensors there, and the result's element type.

    Raises
    ------
    DeviceError
        If tensors live on different devices.
    DtypeError
        If tensors have different element types, or an operand is not numeric.  Beside 16-bit tensors, float32 ones
        without axes are fine, and with `mixed` all float32 ones.  If they are of an integer type, unless `integers`.
    ShapeError
        If a vector could be a row or a column.
    """
    backend: Device | None = None
    dtype: DType | None = None
    plain = arrays = False
    for x in operands:
        if type(x) is not Tensor:
            plain, arrays = True, arrays or not isinstance(x, (int, float))
            continue
        b = x.buffer
        if backend is None:
            backend, dtype = b.backend, b.dtype
        elif b.backend is not backend:
            raise closed_or_elsewhere(function, backend, b.backend)
        elif b.dtype is not dtype:
            dtype = _common_type(function, operands, mixed)
    if backend is None or dtype is None:
        backend, dtype = default_backend(), default_dtype()
    if not (dtype.is_float or integers):
        refuse_integers(function, dtype)
    if not plain:
        return backend, operands, dtype
    if arrays:
        operands = _as_vectors(function, operands, vectors)
    number = F32 if dtype.is_half else dtype  # a number keeps its digits, one of numpy's too
    return backend, tuple(x if type(x) is Tensor else lift(
        x, backend, number if isinstance(x, (int, float)) or getattr(x, "ndim", 1) == 0 else dtype, function)
        for x in operands), dtype


def refuse_integers(function: str, dtype: DType) -> NoReturn:
    """Raise, as an op computes with floats."""
    raise DtypeError(f"{function}: operands are of type {dtype}, which is for class numbers and ids; floats are "
                     f"required. Convert with t.astype(\"f32\").")


def _common_type(function: str, operands: tuple[object, ...], mixed: bool) -> DType:
    """The element type of tensors that have not all the same."""
    buffers = [x.buffer for x in operands if isinstance(x, Tensor)]
    kinds = list(dict.fromkeys(b.dtype for b in buffers if b.dtype is not F32 or not (mixed or b.shape == ())))
    if len(kinds) == 1 and kinds[0].is_half:
        return kinds[0]
    first, second = list(dict.fromkeys(b.dtype for b in buffers))[:2]
    raise DtypeError(f"{function}: operands have element types {first} and {second}; they must be equal. "
                     f"Convert one with t.astype.")
