"""Tensors that are made: of numbers that the program names, of random ones, and of those of another device or type.

Named numbers are launches or constants in a captured step, never uploads.  Random ones have the same bits everywhere
after `ag_seed`, and each replay draws anew.  Uniform ones lie on a grid of 2**-24, in 16 bits on that of the type.  Ops
make others of them: normal ones by Box and Muller's method, choices by races of clocks, which go off at their rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor, constant, fetch_cotangent, filled, place_cotangent, place_of
from ag.autograd.op import Cotangents, composed, documented
from ag.autograd.operands import as_array, as_numbers, column, converted_on_host, number_given, to_buffer
from ag.autograd.tape import Node, is_recording, refuse_changed, repeated_since
from ag.autograd.tensor import OPS, Tensor, TensorLike, register, tensor_given
from ag.engine.buffer import Buffer, Device
from ag.engine.device import backend_of
from ag.engine.dtype import BF16, BOOL, F16, F32, F64, I32, DType, as_dtype
from ag.engine.interpreter import current
from ag.engine.kernels import random as kernels
from ag.engine.kernels.convert import converted, from_whole
from ag.engine.kernels.elementwise import copied
from ag.engine.random import draw_key
from ag.engine.shape import Shape, broadcast, is_whole, true_or_false, whole_number
from ag.errors import CaptureError, DtypeError, ShapeError
from ag.ops.arithmetic import ag_add, ag_clamp, ag_div, ag_log, ag_mul, ag_scale, ag_sqrt, ag_sub, dropped
from ag.ops.functions import all as every
from ag.ops.functions import cos, eq, floor, isfinite, logical_and, lt
from ag.ops.indexing import ag_reshape
from ag.ops.reduce import ag_sum, argmax
from ag.ops.reduce import min as least
from ag.ops.shapes import _numbers

__all__ = ["ag_cast", "ag_to_device", "arange", "bernoulli", "dropout", "dropout2d", "empty", "eye", "full",
           "full_like", "linspace", "multinomial", "normal", "ones", "ones_like", "rand", "rand_like", "randint",
           "randint_like", "randn", "randn_like", "randperm", "uniform", "zeros", "zeros_like"]

Size = int | Sequence[int]
_GRIDS = {F16: 2.0**11, BF16: 2.0**8}  # uniform numbers to round down to, as the next above is 1


def _making(name: str, doc: str, make: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Define a function of a size, and one of a tensor, by a function of a shape, a device and a type."""
    def of_size(*size: Size, dtype: str | None = None, device: str | None = None) -> Tensor:
        backend, wanted = place_of(name, dtype, device)
        return make(_numbers(name, "size", size), backend=backend, dtype=wanted)

    def like(x: TensorLike, dtype: str | None = None, device: str | None = None) -> Tensor:
        x = as_tensor(x)
        backend, wanted = place_of(like.__name__, dtype, device, x)
        return make(x.shape, backend=backend, dtype=wanted)

    of_size.__name__, of_size.__doc__, like.__name__ = name, doc, f"{name}_like"
    like.__doc__ = f"Call `{name}` with the shape of a tensor, and with its type and device unless others are named."
    for function in (of_size, like):
        function.__qualname__ = function.__name__
    return composed(of_size), composed(like)


zeros, zeros_like = _making("zeros", "Make a tensor of zeros.", partial(filled, value=0.0))
ones, ones_like = _making("ones", "Make a tensor of ones.", partial(filled, value=1.0))


@composed
def empty(*size: Size, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor whose values are to be replaced, of zeros."""
    return zeros(*size, dtype=dtype, device=device)


@composed
def full(size: Size, fill_value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a tensor of one number.

    >>> ag.ops.full((1, 2), 7.0).numpy().tolist()
    [[7.0, 7.0]]
    """
    value = number_given("full", "fill_value", fill_value)
    return filled(_numbers("full", "size", (size,)), value, *place_of("full", dtype, device))


@composed
def full_like(x: TensorLike, fill_value: float, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Call `full` with the shape, type and device of a tensor."""
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
    """Make so many numbers from `start` to `end`, both included, at equal distances.

    >>> ag.ops.linspace(0.0, 1.0, 5).numpy().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    first, last = number_given("linspace", "start", start), number_given("linspace", "end", end)
    (count,) = _numbers("linspace", "steps", (steps,))
    return constant(np.linspace(first, last, count), *place_of("linspace", dtype, device))


@composed
def eye(n: int, m: int | None = None, dtype: str | None = None, device: str | None = None) -> Tensor:
    """Make a matrix of n rows, and as many columns or m, with ones on its diagonal.

    >>> ag.ops.eye(2).numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns = _numbers("eye", "sizes", (n, n if m is None else whole_number("eye", "m", m)))
    backend, wanted = place_of("eye", dtype, device)
    if not wanted.is_float:
        return constant(np.eye(rows, columns), backend, wanted)
    down, across = (np.arange(count, dtype=np.float32) for count in (rows, columns))
    return eq(constant(down[:, None], backend, F32), constant(across[None], backend, F32)).astype(wanted.name)


# ---------------------------------------------------------------------------------------------- random ones


def _uniforms(function: str, shape: Shape, backend: Device, dtype: DType) -> Buffer:
    """Draw uniform numbers in float32, or in float64 for that."""
    if not dtype.is_float:
        raise DtypeError(f"{function}: the element type {dtype} was asked for; a floating type is required.")
    out = backend.launch(kernels.uniform, draw_key(backend), into=backend.alloc(shape, F32), shape=shape)
    return converted_on_host(out, F64) if dtype is F64 else out


def _rand(shape: Shape, backend: Device, dtype: DType) -> Tensor:
    found, grid = Tensor(_uniforms("rand", shape, backend, dtype)), _GRIDS.get(dtype)
    return ag_scale(floor(ag_scale(found, grid)), 1 / grid).astype(dtype.name) if grid else found


def _randn(shape: Shape, backend: Device, dtype: DType) -> Tensor:
    both = _uniforms("randn", (2, *shape), backend, dtype)
    radius = ag_sqrt(ag_scale(ag_log(ag_sub(1.0, Tensor(both.view(shape)))), -2.0))
    found = ag_mul(radius, cos(ag_scale(Tensor(both.view(shape, math.prod(shape))), 2 * math.pi)))
    return found.astype(dtype.name) if dtype.is_half else found


rand, rand_like = _making("rand", "Draw uniform numbers in [0, 1).", _rand)
randn, randn_like = _making("randn", "Draw normal numbers with mean 0 and variance 1.", _randn)


@composed
def randint(low: int, high: int | Size | None = None, size: Size | None = None, device: str | None = None) -> Tensor:
    """Draw whole numbers from `low` to below `high`, of type i32.

    ``randint(high, size)`` begins at 0.  Each probability is exact but for ``(high - low) * 2**-32`` of itself.

    >>> ag.ops.randint(5, 6, (1, 3)).numpy().tolist(), ag.ops.randint(1, (2,)).numpy().tolist()
    ([[5, 5, 5]], [0, 0])
    """
    if size is None or high is None:
        low, high, size = 0, low, high if size is None else size
    if size is None:
        raise TypeError("randint: no size was given; it is the last argument, as in randint(0, 10, (2, 3)).")
    return _randint(low, high, _numbers("randint", "size", (size,)), place_of("randint", "i32", device)[0])


def _randint(low: int, high: int | Size, shape: Shape, backend: Device) -> Tensor:
    first, last = (whole_number("randint", "an end", end) for end in (low, high))
    if not -(1 << 31) <= first < last <= 1 << 31 or last - first >= 1 << 31:
        raise ValueError(f"randint: low is {first} and high {last}; numbers of 32 bits are required, the first less "
                         f"than the second, by less than 2**31.")
    return Tensor(backend.launch(kernels.randint, draw_key(backend), into=backend.alloc(shape, I32), shape=shape,
                                 low=first, count=last - first))


@composed
def randint_like(x: TensorLike, low: int, high: int | None = None) -> Tensor:
    """Call `randint` with the shape and device of a tensor."""
    x = as_tensor(x)
    return _randint(*((0, low) if high is None else (low, high)), x.shape, x.buffer.backend)


@composed
def normal(mean: TensorLike = 0.0, std: TensorLike = 1.0, size: Size | None = None, dtype: str | None = None,
           device: str | None = None) -> Tensor:
    """Draw ``mean + std * randn``, in the broadcast shape unless a size is given; gradients flow to both."""
    mean, std, numbers = _beside("normal", _randn, mean, std, size, dtype, device)
    if not isinstance(std, Tensor) and std < 0:
        raise ValueError(f"normal: std is {std}; a number of at least 0 is required.")
    return ag_add(mean, ag_mul(std, numbers))


@composed
def uniform(low: TensorLike = 0.0, high: TensorLike = 1.0, size: Size | None = None, dtype: str | None = None,
            device: str | None = None) -> Tensor:
    """Draw ``low + (high - low) * rand``, in the broadcast shape unless a size is given; gradients flow to both.

    Reference: PyTorch ``distributions.Uniform``.
    """
    low, high, numbers = _beside("uniform", _rand, low, high, size, dtype, device)
    return ag_add(low, ag_mul(high - low, numbers))


def _beside(function: str, draw: Callable[[Shape, Device, DType], Tensor], a: TensorLike, b: TensorLike,
            size: Size | None, dtype: str | None, device: str | None) -> tuple[Tensor | float, Tensor | float, Tensor]:
    """Return two parameters, and what is drawn for them beside the tensor among them, if there is one."""
    backend, wanted = place_of(function, dtype, device, next((x for x in (a, b) if isinstance(x, Tensor)), None))
    a, b = (x if isinstance(x, Tensor) else Tensor(to_buffer(column(as_array(x, function)), backend, wanted))
            if np.ndim(x) else number_given(function, "a parameter", x) for x in (a, b))
    shape = broadcast(*(x.shape if isinstance(x, Tensor) else () for x in (a, b)))
    return a, b, draw(shape if size is None else _numbers(function, "size", (size,)), backend, wanted)


@composed
def bernoulli(p: TensorLike) -> Tensor:
    """Draw 1 with a probability, else 0, for each element, of its type; no gradient flows.

    >>> ag.ops.bernoulli([[0.0, 1.0]]).numpy().tolist()
    [[0.0, 1.0]]
    """
    p = as_tensor(p).detach()
    drawn = Tensor(_uniforms("bernoulli", p.shape, p.buffer.backend, p.buffer.dtype))
    return lt(drawn, p.astype("f32") if p.buffer.dtype.is_half else p).astype(p.dtype)


@composed
def randperm(n: int, device: str | None = None) -> Tensor:
    """Draw an order of 0, 1, ..., n - 1, of type i32; the host sorts, so not in a captured step."""
    (count,), (backend, _) = _numbers("randperm", "n", (n,)), place_of("randperm", "i32", device)
    _refuse_captured("randperm", "draw the order before the step and pass it", backend)
    words = kernels.words_of(backend.download(draw_key(backend)), (2 * count,)).astype(np.uint64)
    return constant(np.argsort(words[::2] << np.uint64(32) | words[1::2], kind="stable"), backend, I32)


def _refuse_captured(function: str, instead: str, backend: Device) -> None:
    if backend.recording is not None:
        backend.recording.refuse(CaptureError(f"{function}: the host sorts numbers of {backend.name}, which a captured "
                                              f"step cannot; {instead}."))


@composed
def multinomial(probabilities: TensorLike, num_samples: int, replacement: bool = False) -> Tensor:
    """Draw classes, which are the first axis, with probabilities or weights that need not add up to 1, as i32.

    Probabilities are exact to about 2**-24.  In a captured step nothing checks that weights are finite, not negative
    and not all 0; without replacement the host sorts, so not in a captured step.
    Reference: PyTorch ``multinomial``, whose classes are the last axis.

    >>> ag.ops.multinomial([[0.0, 1.0], [2.0, 0.0]], 3, True).numpy().tolist()
    [[1, 0], [1, 0], [1, 0]]
    """
    weights, again = as_tensor(probabilities).detach(), true_or_false("multinomial", "replacement", replacement)
    (count,) = _numbers("multinomial", "num_samples", (num_samples,), 1)
    backend, weights = weights.buffer.backend, weights.astype("f32") if weights.buffer.dtype.is_half else weights
    if not weights.ndim or not weights.shape[0] or (not again and count > weights.shape[0]):
        raise ShapeError(f"multinomial: probabilities are {weights.shape} and num_samples is {count}; classes along "
                         f"the first axis are required, and without replacement as many as samples.")
    if not again:
        _refuse_captured("multinomial", "write replacement=True, or draw before the step", backend)
    total = ag_sum(weights, 0, True)
    if backend.recording is None and weights.size and not (
            least(weights).item() >= 0 and every(logical_and(isfinite(total), total)).item()):
        raise ValueError("multinomial: a probability is negative or not finite, or those of a column are all 0; "
                         "weights of at least 0 are required, one of them more.")
    classes, *rest = weights.shape
    shape = (classes, *([count] if again else []), *rest)
    clocks = ag_clamp(Tensor(_uniforms("multinomial", shape, backend, weights.buffer.dtype)), 2.0**-25)
    rates = ag_reshape(ag_div(weights, total), classes, *([1] if again else []), *rest)
    races = ag_div(rates, ag_scale(ag_log(clocks), -1.0))
    if again:
        return argmax(races, 0)
    numbers = races.numpy()
    order = np.argsort(-numbers, axis=0, kind="stable")[:count]
    if not np.take_along_axis(numbers, order, 0).all():
        raise ValueError(f"multinomial: fewer than {count} classes of a column have a probability above 0; ask for "
                         f"fewer samples, or write replacement=True.")
    return constant(order, backend, I32)


@composed
def dropout(x: TensorLike, p: float = 0.5, training: bool = True) -> Tensor:
    """Set elements to 0 with a probability, and divide the others by 1 less it; return `x` itself unless training.

    >>> ag.ops.dropout([[1.0, 2.0]], 0.5, training=False).numpy().tolist()
    [[1.0, 2.0]]
    """
    x, rate = as_tensor(x), number_given("dropout", "p", p)
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout: p is {rate}; a probability from 0 to 1 is required.")
    if not true_or_false("dropout", "training", training) or not rate:
        return x
    return dropped(x, rate) if rate < 1 else ag_scale(x, 0.0)


@composed
def dropout2d(x: TensorLike, p: float = 0.5, training: bool = True) -> Tensor:
    """Set whole channels of samples to 0, as `dropout`; these are the first and the last axis.

    Reference: PyTorch ``dropout2d``, whose first axis is the batch.
    """
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"dropout2d: x is {x.shape}; (channels, ..., batch) is required.")
    ones = filled((x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1]), 1.0, x.buffer.backend, x.buffer.dtype)
    kept = dropout(ones, p, training)
    return x if kept is ones else ag_mul(x, kept)


# ---------------------------------------------------------------------------------------------- another device or type


def _result(out: Buffer, t: Tensor, name: str, rule: Callable[..., Cotangents], saved: object = None,
            half: bool = False) -> Tensor:
    """A tensor made of `t`, with a node if gradients flow back."""
    if not (is_recording() and t.requires_grad):
        return Tensor(out)
    return Tensor(out, True, Node(name, rule, (t,), (True,), saved, (), half))


@documented
def ag_to_device(t: Tensor, device: str) -> Tensor:
    """A tensor on another device; gradients flow back.

    The values go through the host, so this waits for the source device and cannot be part of a captured step.

    Parameters
    ----------
    t : Tensor, which is returned itself if it is there already
    device : str

    >>> ag.ag_to_device(ag.ag_tensor([1.0]), "cpu:1").device
    'cpu:1'
    """
    source, target = tensor_given("ag_to_device", t).buffer.backend, backend_of(device)
    if source is target:
        return t
    refuse_changed((t.buffer,), repeated_since(), "ag_to_device", (t,))
    if (here := current()) is not None:
        here.uses((t,), is_recording() is not False)
    moved = to_buffer(source.download(t.buffer), target, t.buffer.dtype)
    # true values, as the devices may have different loss scales
    result = _result(moved, t, "ag_to_device", lambda run, g, saved, need: (
        place_cotangent(fetch_cotangent(g), saved, g.dtype),), source)
    if here is not None:
        here.same(t, result)
    return result


@documented
def ag_cast(t: Tensor, dtype: str) -> Tensor:
    """A tensor with another element type; gradients flow back.

    Rounding is to the nearest, ties to even; what f16 cannot hold becomes infinite.  Nothing is cast to integers.

    Parameters
    ----------
    t : Tensor of type f32, f16, bf16, i32, u32 or bool
        Returned itself if it has the other type already.
    dtype : str
        ``"f32"``, ``"f16"``, ``"bf16"`` or ``"bool"``.

    >>> ag.ag_cast(ag.ag_tensor([[1.0001]]), "f16").item()
    1.0
    """
    wanted = as_dtype(dtype, "ag_cast")
    if tensor_given("ag_cast", t).buffer.dtype is wanted:
        return t
    if wanted is BOOL:
        return cast(Tensor, OPS["ne"](t if t.buffer.dtype.is_float else ag_cast(t, "f32"), 0.0))
    if t.buffer.dtype is BOOL and wanted is F64:
        return Tensor(converted_on_host(as_numbers(t.buffer, F32), F64))
    if wanted not in (F32, F16, BF16) or t.buffer.dtype is F64:
        raise DtypeError(f"ag_cast: {t.dtype} to {wanted} was asked for; tensors are cast from f32, f16, bf16, i32 and "
                         f"u32 to f32, f16 and bf16. Convert the numpy array instead.")
    if (here := current()) is not None:
        here.uses((t,), is_recording() is not False)
    if t.buffer.dtype is BOOL:
        numbers = as_numbers(t.buffer, wanted)
        out = copied(numbers) if wanted is F32 else converted(numbers, wanted)
    elif not t.buffer.dtype.is_float:
        wide = t.buffer.backend.alloc(t.shape, F32)
        t.buffer.backend.launch(from_whole, t.buffer, into=wide, is_signed=int(t.buffer.dtype is I32))
        out = converted(wide, wanted)
    else:
        refuse_changed((t.buffer,), repeated_since(), "ag_cast", (t,))
        out = converted(t.buffer, wanted)
    # the tape stores a cotangent as its tensor is
    result = _result(out, t, "ag_cast", lambda run, g, saved, need: (g,), half=True)
    if here is not None:
        here.after_op(ag_cast, "ag_cast", (t,), (), result)
    return result


register("ag_cast", ag_cast)
