"""PyTorch's ops in terms of ag's: one function per name of PyTorch's table of samples, `op_db`.

What ag has not is `Inexpressible`.  PyTorch puts the batch first, ag last, so axes are turned before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ag

Tensor = Any


class Inexpressible(Exception):  # noqa: N818  (it is no error)
    """The sample asks for what ag does not have."""


EXPRESSED: dict[str, Callable[..., Any]] = {}


def express(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        EXPRESSED.update(dict.fromkeys(names, fn))
        return fn

    return keep


def need(condition: object, reason: str) -> None:
    if not condition:
        raise Inexpressible(reason)


def number(x: Any, what: str) -> Any:
    """A Python number; tensors and complex numbers are none."""
    need(x is None or (isinstance(x, (int, float, np.generic)) and not isinstance(x, (bool, np.bool_))), what)
    return x


def operand(x: Any) -> Any:
    """A tensor of floats, or a number."""
    need(isinstance(x, (ag.Tensor, int, float)) and not isinstance(x, bool), f"an operand is {kind_of(x)}")
    return x


def kind_of(x: Any) -> str:
    return f"an array of {x.dtype.kind}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"


def at(dim: int, rank: int) -> int:
    need(-max(rank, 1) <= dim < max(rank, 1), "an axis that is not there")
    return dim % rank if rank else 0


def at_most_two(x: Tensor) -> int:
    need(x.ndim <= 2, "more than two axes")
    return int(x.ndim)


def unary(name: str, fn: Callable[[Tensor], Tensor]) -> None:
    EXPRESSED[name] = lambda x: fn(operand(x))


for _name, _fn in {
    "exp": ag.ag_exp,
    "log": ag.ag_log,
    "sqrt": ag.ag_sqrt,
    "abs": ag.ag_abs,
    "sigmoid": ag.ag_sigmoid,
    "tanh": ag.ag_tanh,
    "neg": lambda x: -x,
    "square": lambda x: x**2,
    "reciprocal": lambda x: 1.0 / x,
    "rsqrt": lambda x: 1.0 / ag.ag_sqrt(x),
    "positive": lambda x: x * 1.0,
    "T": lambda x: x.T,
    "t": lambda x: x.T if at_most_two(x) == 2 else x,
    "ravel": lambda x: x.reshape(-1),
}.items():
    unary(_name, _fn)


@express("nn.functional.relu")
def relu(x: Tensor, inplace: bool = False) -> Tensor:
    return ag.ag_relu(operand(x))


@express("nn.functional.silu")
def silu(x: Tensor, inplace: bool = False) -> Tensor:
    return ag.ag_silu(operand(x))


@express("nn.functional.gelu")
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return ag.ag_gelu(operand(x), approximate=approximate)


@express("nn.functional.leaky_relu")
def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return ag.ag_leaky_relu(operand(x), negative_slope)


@express("add", "__radd__")
def add(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    y = operand(y)
    return operand(x) + (y if alpha == 1 else y * number(alpha, "alpha is no number"))


@express("sub")
def sub(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    y = operand(y)
    return operand(x) - (y if alpha == 1 else y * number(alpha, "alpha is no number"))


@express("rsub", "__rsub__")
def rsub(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    return operand(y) - (operand(x) if alpha == 1 else x * number(alpha, "alpha is no number"))


@express("mul", "__rmul__")
def mul(x: Tensor, y: Any) -> Tensor:
    return operand(x) * operand(y)


@express("div", "true_divide")
def div(x: Tensor, y: Any, rounding_mode: str | None = None) -> Tensor:
    need(rounding_mode is None, "rounding_mode")
    return operand(x) / operand(y)


@express("__rdiv__")
def rdiv(x: Tensor, y: Any) -> Tensor:
    return operand(y) / operand(x)


@express("pow")
def power(x: Tensor, p: Any) -> Tensor:
    return operand(x) ** number(p, "the exponent is a tensor")


@express("clamp", "clamp_min", "clamp_max")
def clamp(x: Tensor, low: Any = None, high: Any = None, **named: Any) -> Tensor:
    low, high = named.get("min", low), named.get("max", high)
    low, high = number(low, "a bound is a tensor"), number(high, "a bound is a tensor")
    need(low is None or high is None or low <= high, "bounds the wrong way round")
    return ag.ag_clamp(operand(x), -np.inf if low is None else low, np.inf if high is None else high)


for _name, _fn in {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}.items():
    EXPRESSED[_name] = lambda x, y, fn=_fn: fn(operand(x), operand(y))


# ---------------------------------------------------------------------------------------------- reductions


def _reduced(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        need(dtype is None, "dtype")
        need(not isinstance(dim, ag.Tensor), "the maximum of two tensors")
        dims = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        if operand(x).ndim == 0:
            return fn(x)
        return fn(x, None if len(dims) == 0 else dims, keepdim)

    return reduce


EXPRESSED |= {"sum": _reduced(ag.ag_sum), "mean": _reduced(ag.ag_mean), "amax": _reduced(ag.ag_max)}


@express("max")
def maximum(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    need(not isinstance(dim, ag.Tensor), "the maximum of two tensors")
    need(dim is None, "positions of maxima")
    return ag.ag_max(operand(x))


def _softmax(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, dim: Any = None, dtype: Any = None) -> Tensor:
        need(dtype is None, "dtype")
        need(isinstance(dim, int), "no dim")
        need(operand(x).ndim > 0, "softmax of a number")
        return fn(x, dim)

    return apply


EXPRESSED |= {
    "softmax": _softmax(ag.ag_softmax),
    "log_softmax": _softmax(ag.ag_log_softmax),
    "nn.functional.softmin": _softmax(lambda x, dim: ag.ag_softmax(-x, dim)),
}

# ---------------------------------------------------------------------------------------------- shapes


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else tuple(given)


@express("reshape", "view", "unsafe_view")
def reshape(x: Tensor, *shape: Any) -> Tensor:
    return operand(x).reshape(*_shape(shape))


@express("reshape_as", "view_as")
def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    return operand(x).reshape(*other.shape)


@express("flatten")
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if operand(x).ndim == 0:
        return x.reshape(1)
    a, b = at(start_dim, x.ndim), at(end_dim, x.ndim)
    return x.reshape(*x.shape[:a], int(np.prod(x.shape[a : b + 1])), *x.shape[b + 1 :])


@express("unsqueeze")
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    k = at(dim, operand(x).ndim + 1)
    return x.reshape(*x.shape[:k], 1, *x.shape[k:])


@express("squeeze")
def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    dims = range(operand(x).ndim) if dim is None else [at(d, x.ndim) for d in ((dim,) if isinstance(dim, int) else dim)]
    return x.reshape(*(n for k, n in enumerate(x.shape) if n != 1 or k not in dims))


@express("permute")
def permute(x: Tensor, *dims: Any) -> Tensor:
    axes = _shape(dims)
    return ag.ag_transpose(operand(x), *axes) if axes else x


@express("transpose", "transpose_copy")
def transpose(x: Tensor, a: int, b: int) -> Tensor:
    axes = list(range(operand(x).ndim))
    if axes:
        a, b = at(a, x.ndim), at(b, x.ndim)
        axes[a], axes[b] = axes[b], axes[a]
    return ag.ag_transpose(x, *axes) if axes else x


@express("mT")
def matrix_transpose(x: Tensor) -> Tensor:
    return transpose(x, -1, -2)


@express("movedim")
def movedim(x: Tensor, source: Any, target: Any) -> Tensor:
    need(operand(x).ndim, "a number")
    sources = [at(s, x.ndim) for s in ((source,) if isinstance(source, int) else source)]
    targets = [at(s, x.ndim) for s in ((target,) if isinstance(target, int) else target)]
    need(len({*sources}) == len({*targets}) == len(sources) == len(targets), "an axis that is named twice")
    rest = iter(k for k in range(x.ndim) if k not in sources)
    moved = [sources[targets.index(k)] if k in targets else next(rest) for k in range(x.ndim)]
    return ag.ag_transpose(x, *moved) if moved else x


@express("expand", "broadcast_to")
def expand(x: Tensor, *shape: Any) -> Tensor:
    wanted = _shape(shape)
    lead = len(wanted) - operand(x).ndim
    full = tuple(x.shape[k - lead] if n == -1 else n for k, n in enumerate(wanted))
    return x + _constant(np.zeros(full), x)


def _constant(array: Any, like: Tensor) -> Tensor:
    """A tensor of exactly this shape, which a vector is not."""
    return ag.ag_tensor(
        array.reshape(-1, 1) if array.ndim == 1 else array, dtype=like.dtype, device=like.device
    ).reshape(*array.shape)


@express("cat", "concat", "concatenate")
def cat(tensors: Any, dim: int = 0, **named: Any) -> Tensor:
    need(len({operand(t).ndim for t in tensors}) == 1, "an empty vector among others")
    return ag.ag_concat(list(tensors), named.get("axis", dim))


@express("stack")
def stack(tensors: Any, dim: int = 0) -> Tensor:
    return ag.ag_concat([unsqueeze(t, dim) for t in tensors], at(dim, tensors[0].ndim + 1))


@express("hstack")
def hstack(tensors: Any) -> Tensor:
    flat = [t.reshape(1) if operand(t).ndim == 0 else t for t in tensors]
    return ag.ag_concat(flat, 0 if flat[0].ndim == 1 else 1)


@express("vstack")
def vstack(tensors: Any) -> Tensor:
    return ag.ag_concat([t.reshape(1, -1) if operand(t).ndim < 2 else t for t in tensors], 0)


@express("narrow", "narrow_copy")
def narrow(x: Tensor, dim: int, start: Any, length: int) -> Tensor:
    need(isinstance(start, int), "the start is a tensor")
    k = at(dim, operand(x).ndim)
    need(-x.shape[k] <= start <= x.shape[k], "a start that is not there")
    start += x.shape[k] if start < 0 else 0
    need(0 <= length <= x.shape[k] - start, "an end that is not there")
    return x[(slice(None),) * k + (slice(start, start + length),)]


@express("select", "select_copy")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    return operand(x)[(slice(None),) * at(dim, x.ndim) + (index,)]


@express("slice", "slice_copy")
def cut(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    return operand(x)[(slice(None),) * at(dim, x.ndim) + (slice(start, end, step),)]


@express("__getitem__")
def getitem(x: Tensor, key: Any) -> Tensor:
    parts = key if isinstance(key, tuple) else (key,)
    need(
        all(p is None or p is Ellipsis or (isinstance(p, (int, slice)) and not isinstance(p, bool)) for p in parts),
        "an index that is an array",
    )
    return operand(x)[key]


@express("split", "chunk", "split_with_sizes", "unsafe_split", "unsafe_chunk")
def split(x: Tensor, sizes: Any, dim: int = 0) -> Tensor:
    raise Inexpressible("several results")


# ---------------------------------------------------------------------------------------------- products


@express("mm", "mv", "matmul", "linalg.multi_dot")
def matmul(a: Tensor, b: Any = None) -> Tensor:
    need(b is not None, "several matrices")
    need(operand(a).ndim == 2 and operand(b).ndim in (1, 2), "a batch of products")
    return a @ b


@express("__rmatmul__")
def rmatmul(a: Tensor, b: Tensor) -> Tensor:
    return matmul(b, a)


@express("addmm")
def addmm(x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    need(beta != 0, "beta 0 leaves out NaN")
    return operand(x) * number(beta, "beta") + matmul(a, b) * number(alpha, "alpha")


@express("outer", "ger")
def outer(a: Tensor, b: Tensor) -> Tensor:
    return operand(a).reshape(-1, 1) * operand(b).reshape(1, -1)


@express("dot", "linalg.vecdot")
def dot(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
    need(operand(a).shape == operand(b).shape and a.ndim >= 1, "shapes that are unlike")
    return ag.ag_sum(a * b, dim)


@express("nn.functional.linear")
def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    need(operand(w).ndim == 2 and operand(x).ndim >= 1, "a weight that is a vector")
    out = w @ x.reshape(-1, x.shape[-1]).T if x.size else None
    need(out is not None, "no samples")
    out = out if b is None else out + b.reshape(-1, 1)
    return out.T.reshape(*x.shape[:-1], w.shape[0])
