"""Tensors of numbers that the program names; in a captured step they are launches or constants, never uploads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ag.autograd.create import as_tensor, constant, filled, place_of
from ag.autograd.op import composed
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.dtype import F32
from ag.engine.shape import is_whole, whole_number
from ag.ops.functions import eq
from ag.ops.shapes import _numbers

__all__ = ["arange", "empty", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like"]

Size = int | Sequence[int]


@composed
def full(size: Size, fill_value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor of one number.

    Reference: PyTorch ``full``.

    Examples
    --------
    >>> ag.ops.full((1, 2), 7.0).numpy().tolist()
    [[7.0, 7.0]]
    """
    value = number_given("full", "fill_value", fill_value)
    return filled(_numbers("full", "size", (size,)), value, *place_of("full", dtype, device))


@composed
def zeros(*size: Size, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor of zeros.

    Reference: PyTorch ``zeros``.

    Examples
    --------
    >>> ag.ops.zeros(2, 3).shape
    (2, 3)
    """
    return full(_numbers("zeros", "size", size), 0.0, dtype, device)


@composed
def empty(*size: Size, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor whose values are to be replaced; they are zeros.

    Reference: PyTorch ``empty``.
    """
    return full(_numbers("empty", "size", size), 0.0, dtype, device)


@composed
def ones(*size: Size, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor of ones.

    Reference: PyTorch ``ones``.
    """
    return full(_numbers("ones", "size", size), 1.0, dtype, device)


@composed
def full_like(x: TensorLike, fill_value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor of one number, in the shape of another, and with its type and device unless others are named.

    Reference: PyTorch ``full_like``.

    Examples
    --------
    >>> ag.ops.full_like(ag.ag_tensor([[1.0, 2.0]], dtype="f16"), 3.0).dtype
    'f16'
    """
    x, value = as_tensor(x), number_given("full_like", "fill_value", fill_value)
    return filled(x.shape, value, *place_of("full_like", dtype, device, x))


@composed
def zeros_like(x: TensorLike, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make zeros in the shape of a tensor, as `full_like`.

    Reference: PyTorch ``zeros_like``.
    """
    return full_like(x, 0.0, dtype, device)


@composed
def ones_like(x: TensorLike, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make ones in the shape of a tensor, as `full_like`.

    Reference: PyTorch ``ones_like``.
    """
    return full_like(x, 1.0, dtype, device)


@composed
def arange(start: float, end: float | None = None, step: float = 1, dtype: str | None = None,
           device: str | None = None) -> Tensor:
    """Count from `start`, or from 0, to below `end`; of whole numbers the type is i32 unless another is named.

    Reference: PyTorch ``arange``.

    Examples
    --------
    >>> ag.ops.arange(3).numpy(), ag.ops.arange(0.0, 1.0, 0.5).numpy().tolist()
    (array([0, 1, 2], dtype=int32), [0.0, 0.5])
    """
    start, end = (0, start) if end is None else (start, end)
    given = [x if is_whole(x) else number_given("arange", name, x)
             for name, x in (("start", start), ("end", end), ("step", step))]
    first, last, by = given
    if not all(map(math.isfinite, given)) or by == 0 or (last - first) * by < 0:
        raise ValueError(f"arange: start is {first}, end {last} and step {by}; finite numbers are required, and a step "
                         f"that leads from start to end.")
    whole = all(map(is_whole, given))
    return constant(np.arange(first, last, by), *place_of("arange", dtype or ("i32" if whole else None), device))


@composed
def linspace(start: float, end: float, steps: int, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make so many numbers from `start` to `end`, both included, at equal distances.

    Reference: PyTorch ``linspace``.

    Examples
    --------
    >>> ag.ops.linspace(0.0, 1.0, 5).numpy().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    first, last = number_given("linspace", "start", start), number_given("linspace", "end", end)
    (count,) = _numbers("linspace", "steps", (steps,))
    return constant(np.linspace(first, last, count), *place_of("linspace", dtype, device))


@composed
def eye(n: int, m: int | None = None, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a matrix of n rows and m columns, or as many, with ones on its diagonal and zeros elsewhere.

    Reference: PyTorch ``eye``.

    Examples
    --------
    >>> ag.ops.eye(2).numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns = _numbers("eye", "sizes", (n, n if m is None else whole_number("eye", "m", m)))
    backend, wanted = place_of("eye", dtype, device)
    if not wanted.is_float:
        return constant(np.eye(rows, columns), backend, wanted)
    down, across = (np.arange(count, dtype=np.float32) for count in (rows, columns))
    return eq(constant(down[:, None], backend, F32), constant(across[None], backend, F32)).astype(wanted.name)
