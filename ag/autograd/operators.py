"""Operators of tensors that are no ops: comparisons, which are made on the host, and changing a parameter in place.

Knows no gradient: what is compared or changed is not recorded.  `ag.autograd.tensor_operators` calls them, by their
names, as it does ops; numpy's functions compare with them, too (`ag.ops.numpy_functions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from ag.autograd.create import as_array
from ag.autograd.operands import number_given, vector_beside
from ag.autograd.tape import is_recording
from ag.autograd.tensor import Tensor
from ag.autograd.tensor_operators import HOST_OPERATORS
from ag.engine.dtype import BF16, F32
from ag.engine.kernels.convert import converted, loaded, narrow, stored
from ag.engine.kernels.elementwise import copy
from ag.engine.shape import broadcast
from ag.errors import ShapeError, TapeError

__all__: list[str] = []


def _compare(relation: np.ufunc, x: Tensor, other: object) -> Any:
    """Where the relation holds, element by element; host values are taken in the type of `x`, as in arithmetic."""
    name, dtype = relation.__name__, x.buffer.dtype
    if isinstance(other, Tensor):
        values = other.numpy()
    elif isinstance(other, (int, float)) and not dtype.is_float:
        return relation(x.numpy(), other)
    elif not _is_numeric(other):
        return NotImplemented
    else:
        values = as_array(number_given(name, "the operand", other) if isinstance(other, int) else other, name)
        if values.ndim == 1 and vector_beside(name, len(values), [x.shape]):
            values = values.reshape(-1, 1)
        if dtype.is_float:
            values = loaded(stored(values, dtype), dtype)
    try:
        broadcast(x.shape, values.shape)
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}") from None
    return relation(x.numpy(), values)


def _is_numeric(other: object) -> bool:
    """Whether arithmetic takes it for numbers: it says that it is an array, or has items in an order."""
    return isinstance(other, (Number, np.generic)) or hasattr(other, "__array__") or (
        isinstance(other, Sequence) and not isinstance(other, (str, bytes, bytearray)))


def _contains(x: Tensor, value: object) -> bool:
    found = _compare(np.equal, x, value)
    if found is NotImplemented:
        raise TypeError(f"in: a {type(value).__name__} was looked for in a tensor; a number is required.")
    return bool(np.any(found))


def _change(operator: str, p: Tensor, result: Tensor) -> Tensor:
    """Give the parameter `p` the values of `result`, on its device."""
    if is_recording():
        raise TapeError(f"{operator}: a parameter of shape {p.shape} is to be changed inside with_grad_tape, where it "
                        f"may have been used; change it after the block, or write p = p + x for a new tensor.")
    if result.shape != p.shape:
        raise ShapeError(f"{operator}: a parameter of shape {p.shape} was to become {result.shape}; the shapes must be "
                         f"equal.")
    launch, dtype = p.buffer.backend.launch, p.buffer.dtype
    if dtype.is_half:
        launch(narrow, converted(result.buffer, F32), into=p.buffer, bfloat=dtype is BF16)
    else:
        launch(copy, converted(result.buffer, dtype), into=p.buffer)
    return p


HOST_OPERATORS.update(compare=_compare, contains=_contains, change=_change)
