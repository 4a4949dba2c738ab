"""PyTorch's ops by their names in `op_db`, and the call of `ag` that each is; `layers.py` has those of layers.

A call gets what PyTorch's function gets, in PyTorch's order of axes, as tensors of `ag`.  Where axes differ, it moves
them, with recorded ops, so that gradients have PyTorch's shapes.  What cannot be written raises `Inexpressible`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import ag
from ag import ops

Call = Callable[..., Any]
REASONS = {
    "argument": "an argument that ag does not have",
    "axes": "a number without axes, or a vector, where ag requires an axis",
    "dtype": "another element type asked of the result, or of an operand",
    "integers": "whole numbers as operands of arithmetic, or beside floats",
    "random": "random numbers, which differ",
    "refused": "refused by a named error",
}


class Inexpressible(Exception):  # noqa: N818
    """A sample that has no counterpart, with a key of `REASONS`."""


def need(condition: bool, reason: str = "argument") -> None:
    if not condition:
        raise Inexpressible(reason)


def last(x: Any) -> Any:
    """The batch behind, as ag has it."""
    return ops.movedim(x, 0, -1)


def first(x: Any) -> Any:
    """The batch in front, as PyTorch has it."""
    return ops.movedim(x, -1, 0)


def one(sizes: Any) -> Any:
    """PyTorch takes a sequence of one number for all axes."""
    return sizes[0] if isinstance(sizes, (tuple, list)) and len(sizes) == 1 else sizes


def matched(*operands: Any) -> tuple[Any, ...]:
    """Give vectors beside matrices axes of size 1 in front: ag leaves open whether they are rows or columns."""
    ndim = max(x.ndim if isinstance(x, ag.Tensor) else 0 for x in operands)
    return tuple(ops.reshape(x, *(1,) * (ndim - x.ndim), *x.shape) if isinstance(x, ag.Tensor) and 0 < x.ndim < ndim
                 else x for x in operands)


def of_two(function: Call) -> Call:
    """A function of operands that broadcast."""
    def call(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*matched(a, b), *args, **kwargs)
    return call


def scaled(name: str) -> Call:
    """Addition and subtraction, whose second operand may have a factor."""
    function = getattr(ops, name)

    def call(a: Any, b: Any, alpha: float = 1) -> Any:
        return function(a, b if alpha == 1 else ops.scale(b, alpha) if isinstance(b, ag.Tensor) else b * alpha)
    return call


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """`clamp` of numbers; of tensors `maximum` and `minimum`, but equal ones send their gradient to `x`."""
    if all(v is None or not isinstance(v, ag.Tensor) for v in (min, max)):
        return ops.clamp(x, *(d if v is None else v for v, d in ((min, -math.inf), (max, math.inf))))
    for limit, function in ((min, ops.maximum), (max, ops.minimum)):
        if limit is not None:
            x, limit = matched(x, limit)
            x = ops.where(ops.eq(x, limit), x, function(x, limit))
    return x


def div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return ops.floor_divide(a, b)
    y = ops.div(a, b)
    return ops.trunc(y.detach()) if rounding_mode == "trunc" else y


def power(a: Any, b: Any) -> Any:
    return ops.power(a, b) if isinstance(b, ag.Tensor) or not isinstance(a, ag.Tensor) else ops.pow(a, b)


def extreme(name: str) -> Call:
    """`max` and `min`: of all, along an axis with places, or of two tensors."""
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        if (args and isinstance(args[0], ag.Tensor)) or "other" in kwargs:
            return of_two(getattr(ops, name + "imum"))(x, *args, **kwargs)
        return getattr(ops, name + "_with_indices" if args or "dim" in kwargs else name)(x, *args, **kwargs)
    return call


def with_dtype(function: Call) -> Call:
    """A reduction that PyTorch can also do in another type."""
    def call(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        need(dtype is None, "dtype")
        return function(*args, **kwargs)
    return call


def spread(name: str) -> Call:
    """`std`, `var`: the second argument may be `unbiased`."""
    def call(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        correction = correction if correction is not None else 1 if unbiased is None else int(unbiased)
        return getattr(ops, name)(x, dim if dim != () else None, correction, keepdim)
    return call


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, ord: Any = None) -> Any:
    p = p if ord is None else ord
    need(dtype is None, "dtype")
    need(not isinstance(p, str) or p == "fro")
    return ops.norm(x, 2.0 if p is None or isinstance(p, str) else p, dim if dim not in ((), []) else None, keepdim)


def softmax(name: str) -> Call:
    def call(x: Any, dim: int, dtype: Any = None) -> Any:
        need(dtype is None, "dtype")
        return getattr(ops, name)(x, dim)
    return call


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if not x.ndim:
        return ops.reshape(x, 1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return ops.reshape(x, *x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def reshape(x: Any, *shape: Any) -> Any:
    return ops.reshape(x, *(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape))


def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    if dims is None or dims == () or dims == []:
        need(isinstance(shifts, int) or len(shifts) == 1)
        return ops.reshape(ops.roll(ops.reshape(x, -1), one(shifts), 0), *x.shape)
    pairs = zip(*((v if isinstance(v, (tuple, list)) else (v,)) for v in (shifts, dims)), strict=True)
    for shift, dim in pairs:
        x = ops.roll(x, shift, dim)
    return x


def repeat_interleave(x: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    need(isinstance(repeats, int))
    return ops.repeat_interleave(ops.reshape(x, -1) if dim is None else x, repeats, dim or 0)


def on_matrices(function: Call) -> Call:
    """A function of matrices, which are the last two axes in PyTorch and the first two here."""
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        need(x.ndim > 1, "axes")
        back = range(2, x.ndim)
        y = function(ops.permute(x, x.ndim - 2, x.ndim - 1, *range(x.ndim - 2)), *args, **kwargs)
        return ops.permute(y, *back, 0, 1)
    return call


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return ops.movedim(ops.diagonal(x, offset, dim1, dim2), 0, -1)


def matmul(a: Any, b: Any) -> Any:
    """Products as `matmul` of matrices, and as `einsum` where there are vectors and batches."""
    if a.ndim == b.ndim == 2:
        return ops.matmul(a, b)
    need(a.ndim > 0 and b.ndim > 0, "axes")
    batch = "uvwxyz"
    left = batch[len(batch) - max(a.ndim - 2, 0):] + ("ik" if a.ndim > 1 else "k")
    right = batch[len(batch) - max(b.ndim - 2, 0):] + ("kj" if b.ndim > 1 else "k")
    out = max(left[:-2] if a.ndim > 1 else "", right[:-2] if b.ndim > 1 else "", key=len)
    out += ("i" if a.ndim > 1 else "") + ("j" if b.ndim > 1 else "")
    return ops.einsum(f"{left},{right}->{out}", a, b)


def bmm(a: Any, b: Any) -> Any:
    return first(ops.bmm(last(a), last(b)))


def baddbmm(x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    x = ops.expand(x, a.shape[0], a.shape[1], b.shape[2])
    return first(ops.baddbmm(last(x), last(a), last(b), beta, alpha))


def einsum(tensors: Any, equation: str) -> Any:
    return ops.einsum(equation, *tensors)


def cdist(a: Any, b: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    packed = [ops.permute(x, x.ndim - 1, x.ndim - 2, *range(x.ndim - 2))
              for x in (ops.expand(a, *shape, *a.shape[-2:]), ops.expand(b, *shape, *b.shape[-2:]))]
    y = ops.cdist(*packed, p)
    return ops.permute(y, *range(2, y.ndim), 0, 1)


def made(name: str) -> Call:
    """A creation: PyTorch's arguments beside the shape and the numbers are the type, which is set, and the place."""
    def call(*args: Any, dtype: Any = None, device: Any = None, layout: Any = None, requires_grad: Any = None,
             memory_format: Any = None, pin_memory: Any = None, **kwargs: Any) -> Any:
        need(dtype in (None, "float"), "dtype")
        return getattr(ops, name)(*args, **kwargs)
    return call


def linspace(start: Any, end: Any, steps: int, **kwargs: Any) -> Any:
    return made("linspace")(*(x.item() if isinstance(x, ag.Tensor) else x for x in (start, end)), steps, **kwargs)


def new(name: str) -> Call:
    def call(x: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        return made(name)(size, *args, **kwargs)
    return call


def view_as(x: Any, other: Any) -> Any:
    return ops.reshape(x, *other.shape)


def expand_as(x: Any, other: Any) -> Any:
    return ops.expand(x, *other.shape)


def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    start, n = int(start.item()) if isinstance(start, ag.Tensor) else start, x.shape[dim]
    if not -n <= start <= n - length:
        raise ValueError(f"narrow: {length} from {start} of {n} places")
    start += n if start < 0 else 0
    return x[(*(slice(None),) * (dim % x.ndim), slice(start, start + length))]


def select(x: Any, dim: int, index: int) -> Any:
    return x[(*(slice(None),) * (dim % x.ndim), index)]


def reversed_operator(name: str) -> Call:
    """`__radd__` and its like: the number stands first."""
    function = getattr(operator, name)

    def call(x: Any, other: Any) -> Any:
        return function(*matched(other, x))
    return call


def cat(tensors: Any, dim: int = 0) -> Any:
    shaped = [x for x in tensors if getattr(x, "shape", None) != (0,)] or list(tensors)
    return ops.concat(shaped, dim)


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    return ops.index_put(x, tuple(indices), values, accumulate)


def round_to(x: Any, decimals: int = 0) -> Any:
    if decimals < 0:
        return ops.mul(ops.round(ops.div(x, 10.0**-decimals)), 10.0**-decimals)
    return ops.div(ops.round(ops.scale(x, 10.0**decimals)), 10.0**decimals) if decimals else ops.round(x)


def nonzero(x: Any, as_tuple: bool = False) -> Any:
    if as_tuple:
        return ops.unbind(ops.argwhere(x if x.ndim else ops.reshape(x, 1)), 1)
    return ops.argwhere(x)


def where(*args: Any, **kwargs: Any) -> Any:
    need(len(args) == 3)
    return ops.where(args[1], args[0], args[2])


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    return ops.swapaxes(x, dim0, dim1) if x.ndim else x


def permute(x: Any, *dims: Any, **kwargs: Any) -> Any:
    dims = tuple(kwargs.get("dims", dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims))
    return ops.permute(x, *dims)


def addmm(x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return ops.add(*matched(ops.scale(x, beta) if beta != 1 else x, ops.scale(matmul(a, b), alpha)))


def multi_dot(tensors: Any) -> Any:
    found = tensors[0]
    for x in tensors[1:]:
        found = matmul(found, x)
    return found


def meshgrid(*tensors: Any, indexing: str = "ij") -> Any:
    return ops.meshgrid(*(tensors if isinstance(tensors[0], ag.Tensor) else [*tensors[0], *tensors[1:]]),
                        indexing=indexing)


def transposed(x: Any) -> Any:
    need(x.ndim < 3)
    return ops.transpose(x)


SAME = """
    abs acos acosh all amax amin any argmax argmin argwhere asin asinh atan atanh addcdiv addcmul aminmax block_diag
    broadcast_to ceil chunk cos cosh count_nonzero diag erf erfc erfinv exp exp2 expand expm1 flip floor frac gather
    hsplit index_add index_copy index_fill index_select inner isfinite isinf isnan kron lerp log log10 log1p log2
    logical_not logsumexp masked_scatter masked_select movedim mv nan_to_num outer reciprocal repeat rot90 rsqrt
    scatter scatter_add scatter_reduce sigmoid sign signbit sin sinh split sqrt square squeeze stack take
    take_along_dim tan tanh tensordot tile trunc unbind unsqueeze vsplit
"""
BROADCAST = """
    atan2 copysign eq floor_divide fmod ge gt hypot le logaddexp logical_and logical_or logical_xor lt maximum minimum
    mul ne remainder
"""
OPERATORS = {"__radd__": "add", "__rsub__": "sub", "__rmul__": "mul", "__rdiv__": "truediv", "__rpow__": "pow",
             "__rmod__": "mod"}

CALLS: dict[str, Call] = {
    **{name: getattr(ops, name) for name in SAME.split()},
    **{name: of_two(getattr(ops, name)) for name in BROADCAST.split()},
    **{name: of_two(scaled(name)) for name in ("add", "sub")},
    **{name: reversed_operator(function) for name, function in OPERATORS.items()},
    **{name: made(name) for name in ("zeros", "ones", "full", "eye", "full_like", "arange", "zeros_like", "ones_like")},
    **{f"new_{name}": new(name) for name in ("zeros", "ones", "full")},
    **{name: with_dtype(getattr(ops, name)) for name in ("sum", "mean", "prod")},
    **{name: softmax(name) for name in ("softmax", "log_softmax")},
    **{name: spread(name) for name in ("var", "std", "var_mean")},
    **{name: extreme(name) for name in ("max", "min")},
    **{name: on_matrices(getattr(ops, name)) for name in ("tril", "triu")},
    "T": ops.transpose,
    "__getitem__": operator.getitem,
    "__rmatmul__": lambda x, other: matmul(other, x),
    "addmm": addmm,
    "baddbmm": baddbmm,
    "bmm": bmm,
    "cat": cat,
    "cdist": cdist,
    "clamp": clamp,
    "clamp_max": lambda x, limit: clamp(x, None, limit),
    "clamp_min": clamp,
    "clone": lambda x, **_: x + 0.0,
    "diagonal": diagonal,
    "div": of_two(div),
    "dot": ops.inner,
    "einsum": lambda tensors, equation: ops.einsum(equation, *tensors),
    "expand_as": expand_as,
    "flatten": flatten,
    "float_power": of_two(power),
    "index_put": index_put,
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: diagonal(x, offset, dim1, dim2),
    "linalg.multi_dot": multi_dot,
    "linalg.vector_norm": norm,
    "linspace": linspace,
    "mT": lambda x: ops.swapaxes(x, -1, -2),
    "masked_fill": lambda x, mask, value: ops.where(mask, value, x),
    "matmul": matmul,
    "meshgrid": meshgrid,
    "mm": matmul,
    "narrow": narrow,
    "neg": operator.neg,
    "nonzero": nonzero,
    "norm": norm,
    "permute": permute,
    "positive": operator.pos,
    "pow": of_two(power),
    "ravel": lambda x: ops.reshape(x, x.size),
    "repeat_interleave": repeat_interleave,
    "reshape": reshape,
    "reshape_as": view_as,
    "roll": roll,
    "round": round_to,
    "rsub": of_two(lambda a, b, alpha=1: scaled("sub")(b, a, alpha=alpha)),
    "select": select,
    "split_with_sizes": ops.split,
    "t": transposed,
    "transpose": transpose,
    "true_divide": of_two(div),
    "view": reshape,
    "view_as": view_as,
    "where": where,
}
