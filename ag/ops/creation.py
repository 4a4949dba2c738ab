"""Tensors of numbers that the program names; in a captured step they are launches or constants, never uploads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ag.autograd.create import as_tensor, constant, filled, place_of
from ag.autograd.op import composed
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Device
from ag.engine.dtype import F32, DType
from ag.engine.shape import Shape, is_whole, whole_number
from ag.ops.functions import eq
from ag.ops.shapes import _numbers

__all__ = ["arange", "empty", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like"]

Size = int | Sequence[int]


def making(name: str, make: Callable[[Shape, Device, DType], Tensor], doc: str) -> Callable[..., Tensor]:
    """Define a function of a size."""
    def of_size(*size: Size, dtype: str | None = None, device: str | None = None) -> Tensor:
        return make(_numbers(name, "size", size), *place_of(name, dtype, device))

    return composed(_named(of_size, name, make.__module__, f"{doc}  Reference: PyTorch ``{name}``."))


def making_like(name: str, make: Callable[[Shape, Device, DType], Tensor]) -> Callable[..., Tensor]:
    """Define a function of a tensor."""
    def like(x: TensorLike, dtype: str | None = None, device: str | None = None) -> Tensor:
        x = as_tensor(x)
        return make(x.shape, *place_of(name, dtype, device, x))

    return composed(_named(like, name, make.__module__, f"Call `{name[:-5]}` with the shape of a tensor, and with its "
                           f"type and device unless others are named.  Reference: PyTorch ``{name}``."))


def _named(function: Callable[..., Tensor], name: str, module: str, doc: str) -> Callable[..., Tensor]:
    function.__name__, function.__qualname__, function.__module__, function.__doc__ = name, name, module, doc
    return function


def _zeros(shape: Shape, backend: Device, dtype: DType) -> Tensor:
    return filled(shape, 0.0, backend, dtype)


def _ones(shape: Shape, backend: Device, dtype: DType) -> Tensor:
    return filled(shape, 1.0, backend, dtype)


zeros = making("zeros", _zeros, "Make a tensor of zeros.")
ones = making("ones", _ones, "Make a tensor of ones.")
empty = making("empty", _zeros, "Make a tensor whose values are to be replaced, of zeros.")
zeros_like, ones_like = making_like("zeros_like", _zeros), making_like("ones_like", _ones)


@composed
def full(size: Size, fill_value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor of one number.  Reference: PyTorch ``full``.

    >>> ag.ops.full((1, 2), 7.0).numpy().tolist()
    [[7.0, 7.0]]
    """
    value = number_given("full", "fill_value", fill_value)
    return filled(_numbers("full", "size", (size,)), value, *place_of("full", dtype, device))


@composed
def full_like(x: TensorLike, fill_value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Call `full` with the shape, type and device of a tensor.  Reference: PyTorch ``full_like``."""
    x, value = as_tensor(x), number_given("full_like", "fill_value", fill_value)
    return filled(x.shape, value, *place_of("full_like", dtype, device, x))


@composed
def arange(start: float, end: float | None = None, step: float = 1, dtype: str | None = None,
           device: str | None = None) -> Tensor:
    """Count from `start`, or from 0, to below `end`; of whole numbers the type is i32 unless another is named.

    >>> ag.ops.arange(3).numpy(), ag.ops.arange(0.0, 1.0, 0.5).numpy().tolist()
    (array([0, 1, 2], dtype=int32), [0.0, 0.5])
    """
    given = [x if is_whole(x) else number_given("arange", "an argument", x)
             for x in ((0, start, step) if end is None else (start, end, step))]
    first, last, by = given
    if not all(map(math.isfinite, given)) or by == 0 or (last - first) * by < 0:
        raise ValueError(f"arange: start is {first}, end {last} and step {by}; finite numbers are required, and a step "
                         f"that leads from start to end.")
    whole = all(map(is_whole, given))
    return constant(np.arange(first, last, by), *place_of("arange", dtype or ("i32" if whole else None), device))


@composed
def linspace(start: float, end: float, steps: int, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make so many numbers from `start` to `end`, both included, at equal distances.  Reference: PyTorch ``linspace``.

    >>> ag.ops.linspace(0.0, 1.0, 5).numpy().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    first, last = number_given("linspace", "start", start), number_given("linspace", "end", end)
    (count,) = _numbers("linspace", "steps", (steps,))
    return constant(np.linspace(first, last, count), *place_of("linspace", dtype, device))


@composed
def eye(n: int, m: int | None = None, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a matrix of n rows, and as many columns or m, with ones on its diagonal.  Reference: PyTorch ``eye``.

    >>> ag.ops.eye(2).numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns = _numbers("eye", "sizes", (n, n if m is None else whole_number("eye", "m", m)))
    backend, wanted = place_of("eye", dtype, device)
    if not wanted.is_float:
        return constant(np.eye(rows, columns), backend, wanted)
    down, across = (np.arange(count, dtype=np.float32) for count in (rows, columns))
    return eq(constant(down[:, None], backend, F32), constant(across[None], backend, F32)).astype(wanted.name)
