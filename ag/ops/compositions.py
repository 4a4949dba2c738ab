"""Functions composed of other ops: elementwise of several operands or numbers; norms and their like along axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import inf
from math import prod as product
from typing import TypeVar, cast

from ag.autograd.create import as_tensor
from ag.autograd.op import composed, operands_on_one_device
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import broadcast, counts, normalize_axes, normalize_axis
from ag.errors import ShapeError
from ag.ops.activation import ag_sigmoid, ag_softmax
from ag.ops.arithmetic import (
    ag_abs,
    ag_add,
    ag_clamp,
    ag_div,
    ag_exp,
    ag_log,
    ag_mul,
    ag_pow,
    ag_scale,
    ag_sqrt,
    ag_sub,
)
from ag.ops.functions import eq, gt, isfinite, isnan, le, lt, maximum, ne, rsqrt, square, where
from ag.ops.indexing import ag_reshape
from ag.ops.reduce import ag_max, ag_mean, ag_sum, argmax, min
from ag.ops.selection import gather
from ag.ops.shapes import expand, split, unsqueeze

__all__ = ["addcdiv", "addcmul", "amax", "amin", "aminmax", "argmin", "cdist", "cosine_similarity", "count_nonzero",
           "glu", "group_norm", "hardtanh", "instance_norm", "lerp", "logsumexp", "max_with_indices",
           "min_with_indices", "nan_to_num", "norm", "normalize", "prelu", "softmin", "std", "threshold", "var",
           "var_mean"]

Dim = int | tuple[int, ...] | None
F = TypeVar("F", bound=Callable[..., object])
_LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f64": 1.7976931348623157e308}  # others: that of float32


def _wide(function: F) -> F:
    """Let parts of a statistic keep the digits of float32 where the operands have 16 bits."""
    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        half = next((x.dtype for x in args if isinstance(x, Tensor) and x.buffer.dtype.is_half), None)
        if half is None:
            return function(*args, **kwargs)
        found = function(*[x.astype("f32") if isinstance(x, Tensor) else x for x in args], **kwargs)
        parts = found if isinstance(found, tuple) else (found,)
        parts = tuple([t.astype(half) if t.shape else t for t in parts])  # a loss, without axes, stays float32
        return parts if isinstance(found, tuple) else parts[0]

    return cast("F", call)


def _root(x: Tensor) -> Tensor:
    """Square root, through which 0 sends back 0."""
    some = ne(x, 0.0)
    return where(some, ag_sqrt(where(some, x, 1.0)), 0.0)


@composed
def amax(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Largest element along axes; equal ones share the gradient equally."""
    return ag_max(x, dim, keepdim)


@composed
def amin(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest element along axes, as `min`."""
    return min(x, dim, keepdim)


@composed
def aminmax(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest and largest element along axes, as `min` and `max`."""
    return min(x, dim, keepdim), ag_max(x, dim, keepdim)


@composed
def argmin(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Place of the smallest element along an axis, or among all, as `argmax`; NaN counts as smallest."""
    return argmax(ag_scale(x, -1.0), dim, keepdim)


@composed
def count_nonzero(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Count the elements along axes that are not 0, in floats."""
    return ag_sum(ne(x, 0.0), dim, keepdim)


@composed
def max_with_indices(x: TensorLike, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Largest element along an axis, and its place, as `argmax`; of equal ones the first alone gets the gradient.

    Reference: PyTorch ``max`` with an axis.

    >>> [t.numpy().tolist() for t in ag.ops.max_with_indices([[1.0, 4.0], [3.0, 2.0]], 1)]
    [[4.0, 3.0], [1, 0]]
    """
    return _with_places(x, argmax(x, dim, True), dim, keepdim)


@composed
def min_with_indices(x: TensorLike, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest element along an axis, and its place, as `max_with_indices`.

    Reference: PyTorch ``min`` with an axis.
    """
    return _with_places(x, argmin(x, dim, True), dim, keepdim)


def _with_places(x: TensorLike, places: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the elements at places along an axis, and these."""
    values = gather(x, dim, places)
    shape = [n for a, n in enumerate(places.shape) if keepdim or a != dim % places.ndim]
    return ag_reshape(values, *shape), ag_reshape(places, *shape)


@composed
@_wide
def var(x: TensorLike, dim: Dim = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Variance along axes: squared distances from the mean, added up and divided by their number less `correction`.

    NaN where nothing is left to divide by, as of one element.

    >>> ag.ops.var([[1.0, 3.0], [2.0, 8.0]], dim=1).numpy().tolist()
    [2.0, 18.0]
    """
    return var_mean(x, dim, correction, keepdim)[0]


@composed
@_wide
def var_mean(x: TensorLike, dim: Dim = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Variance, as `var`, and mean along axes.

    >>> tuple(t.item() for t in ag.ops.var_mean([[1.0, 3.0]]))
    (2.0, 2.0)
    """
    x = as_tensor(x)
    count = product(x.shape[a] for a in normalize_axes(dim, x.ndim, "var"))
    mean, left = ag_mean(x, dim, True), count - number_given("var", "correction", correction)
    variance = ag_div(ag_sum(square(ag_sub(x, mean)), dim, keepdim), left if left > 0 else 0.0)
    return variance, mean if keepdim else ag_reshape(mean, *variance.shape)


@composed
@_wide
def std(x: TensorLike, dim: Dim = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Standard deviation along axes, the root of `var`; equal elements get the gradient 0."""
    return _root(var(x, dim, correction, keepdim))


@composed
@_wide
def norm(x: TensorLike, p: float = 2.0, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The p-norm along axes: ``sum(abs(x)**p)**(1/p)``, for infinity the largest magnitude; its gradient at 0 is 0.

    >>> ag.ops.norm([[3.0, 4.0]]).item()
    5.0
    """
    p = number_given("norm", "p", p)
    if p == 2:
        return _root(ag_sum(square(x), dim, keepdim))
    size = ag_abs(x)
    if p in (inf, -inf):
        return ag_max(size, dim, keepdim) if p > 0 else min(size, dim, keepdim)
    if p in (0, 1):
        return ag_sum(size if p else ag_mul(ne(size, 0.0), ag_pow(size, 0.0)), dim, keepdim)
    some = ne(size, 0.0)
    powers = ag_sum(where(some, ag_pow(where(some, size, 1.0), p), 0.0 if p > 0 else inf), dim, keepdim)
    some = ne(powers, 0.0)
    return where(some, ag_pow(where(some, powers, 1.0), 1 / p), 0.0 if p > 0 else inf)


@composed
@_wide
def normalize(x: TensorLike, p: float = 2.0, dim: Dim = 0, eps: float = 1e-12) -> Tensor:
    """Divide by the `norm` along axes, here the features, or by `eps` where that is less.

    Reference: PyTorch ``normalize``, whose default is axis 1.

    >>> ag.ops.normalize([[3.0], [4.0]]).numpy().round(3).ravel()
    array([0.6, 0.8], dtype=float32)
    """
    return ag_div(x, ag_clamp(norm(x, p, dim, True), number_given("normalize", "eps", eps)))


@composed
@_wide
def group_norm(x: TensorLike, num_groups: int, gamma: TensorLike | None = None, beta: TensorLike | None = None,
               eps: float = 1e-5) -> Tensor:
    """Give the channels of each group, with all their places, mean 0 and variance 1 in each sample.

    `x` is (channels, ..., batch); `gamma` and `beta`, (channels, 1), are a factor and an offset.
    Wu, He, "Group Normalization", ECCV 2018; PyTorch ``group_norm``.

    >>> ag.ops.group_norm([[1.0], [3.0], [5.0], [5.0]], 2).numpy().round(3).ravel().tolist()
    [-1.0, 1.0, 0.0, 0.0]
    """
    x, eps = as_tensor(x), number_given("group_norm", "eps", eps)
    if x.ndim < 2 or not counts(num_groups) or not x.shape[0] or x.shape[0] % num_groups:
        raise ShapeError(f"group_norm: x is {x.shape} and num_groups is {num_groups!r:.60}; (channels, ..., batch) is "
                         f"required, and groups must divide the channels.")
    if not eps > 0:
        raise ValueError(f"group_norm: eps is {eps}; it must be positive.")
    grouped = ag_reshape(x, num_groups, product(x.shape[:-1]) // num_groups, x.shape[-1])
    apart = ag_sub(grouped, ag_mean(grouped, 1, True))
    y = ag_reshape(ag_mul(apart, rsqrt(ag_add(ag_mean(square(apart), 1, True), eps))), *x.shape)
    for value, function in ((gamma, ag_mul), (beta, ag_add)):
        y = y if value is None else function(y, ag_reshape(value, x.shape[0], *(1,) * (x.ndim - 1)))
    return y


@composed
def instance_norm(x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None,
                  eps: float = 1e-5) -> Tensor:
    """Give each channel mean 0 and variance 1 in each sample: `group_norm` with a group for each channel.

    Reference: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization"; PyTorch ``instance_norm``.
    """
    x = as_tensor(x)
    if x.ndim < 3 or product(x.shape[1:-1]) < 2:
        raise ShapeError(f"instance_norm: x is {x.shape}; (channels, ..., batch) is required, with at least two values "
                         f"per channel and sample.")
    return group_norm(x, x.shape[0], gamma, beta, eps)


@composed
@_wide
def cosine_similarity(a: TensorLike, b: TensorLike, dim: Dim = 0, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along an axis, here the features.

    Reference: PyTorch ``cosine_similarity``, whose default is axis 1.

    >>> ag.ops.cosine_similarity([[3.0], [4.0]], [[-3.0], [-4.0]]).numpy().round(3).tolist()
    [-1.0]
    """
    a, b = operands_on_one_device("cosine_similarity", (a, b))[1]
    shape, least = broadcast(a.shape, b.shape), number_given("cosine_similarity", "eps", eps)
    a, b = (ag_div(x, maximum(norm(x, 2.0, dim, True), least)) for x in (expand(a, shape), expand(b, shape)))
    return ag_sum(ag_mul(a, b), dim)


@composed
@_wide
def logsumexp(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """``log(sum(exp(x)))`` along axes, without overflow; of -inf alone -inf, with the gradient 0.

    >>> round(ag.ops.logsumexp([[1000.0, 1000.0]]).item(), 3)
    1000.693
    """
    x = as_tensor(x)
    largest = ag_max(x.detach(), dim, True)
    largest = where(isfinite(largest), largest, 0.0)
    powers = ag_sum(ag_exp(ag_sub(x, largest)), dim, keepdim)
    none = eq(powers, 0.0)
    return where(none, -inf, ag_log(where(none, 1.0, powers)) + ag_reshape(largest, *powers.shape))


@composed
def softmin(x: TensorLike, dim: int = 0) -> Tensor:
    """`softmax` of the negated elements."""
    return ag_softmax(ag_scale(x, -1.0), dim)


@composed
def cdist(a: TensorLike, b: TensorLike, p: float = 2.0) -> Tensor:
    """Distance, a p-norm, of each point to each of others; points are columns of features, a batch may follow.

    The differences of all pairs are in memory at once.

    >>> ag.ops.cdist([[0.0, 3.0], [0.0, 4.0]], [[0.0], [0.0]]).numpy().tolist()
    [[0.0], [5.0]]
    """
    a, b = as_tensor(a), as_tensor(b)
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[0] != b.shape[0]:
        raise ShapeError(f"cdist: points are {a.shape} and {b.shape}; (features, points, ...) with as many features "
                         f"are required.")
    return norm(ag_sub(unsqueeze(a, 2), unsqueeze(b, 1)), number_given("cdist", "p", p), 0)


@composed
def prelu(x: TensorLike, weight: TensorLike) -> Tensor:
    """`x` above 0, `weight` times `x` below; the weight is learned, such as one of shape (features, 1).

    >>> ag.ops.prelu([[-2.0, 3.0]], 0.25).numpy().tolist()
    [[-0.5, 3.0]]
    """
    return where(gt(x, 0.0), x, ag_mul(weight, x))


@composed
def glu(x: TensorLike, dim: int = 0) -> Tensor:
    """Gated linear unit: the first half along an axis, here the features, times the sigmoid of the second.

    Reference: PyTorch ``glu``, whose default is the last axis.

    >>> ag.ops.glu([[3.0], [0.0]]).numpy().tolist()
    [[1.5]]
    """
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, "glu")
    if x.shape[axis] % 2:
        raise ShapeError(f"glu: x is {x.shape} and dim is {dim}; an even size is required, as it is cut into halves.")
    values, gates = split(x, (x.shape[axis] // 2,) * 2, axis)
    return ag_mul(values, ag_sigmoid(gates))


@composed
def threshold(x: TensorLike, threshold: float, value: float) -> Tensor:
    """`x` where it is above a number, else another number.

    >>> ag.ops.threshold([[0.5, 2.0]], 1.0, -1.0).numpy().tolist()
    [[-1.0, 2.0]]
    """
    return where(le(x, number_given("threshold", "threshold", threshold)), number_given("threshold", "value", value), x)


@composed
def hardtanh(x: TensorLike, lo: float = -1.0, hi: float = 1.0) -> Tensor:
    """`x`, limited to an interval; its gradient is 0 at the ends, where that of `clamp` is 1.

    >>> ag.ops.hardtanh([[-2.0, 0.5]]).numpy().tolist()
    [[-1.0, 0.5]]
    """
    lo, hi = number_given("hardtanh", "lo", lo), number_given("hardtanh", "hi", hi)
    if not lo < hi:
        raise ValueError(f"hardtanh: lo is {lo} and hi is {hi}; lo must be less than hi.")
    low = where(lt(lo, x), x, where(isnan(x), x, lo))
    return where(lt(low, hi), low, where(isnan(low), low, hi))


@composed
def lerp(a: TensorLike, b: TensorLike, weight: TensorLike) -> Tensor:
    """``a + weight * (b - a)``."""
    return ag_add(a, ag_mul(weight, ag_sub(b, a)))


@composed
def addcmul(x: TensorLike, a: TensorLike, b: TensorLike, value: float = 1.0) -> Tensor:
    """``x + value * a * b``."""
    return ag_add(x, ag_scale(ag_mul(a, b), value))


@composed
def addcdiv(x: TensorLike, a: TensorLike, b: TensorLike, value: float = 1.0) -> Tensor:
    """``x + value * a / b``."""
    return ag_add(x, ag_scale(ag_div(a, b), value))


@composed
def nan_to_num(x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Replace NaN and infinities by numbers, infinities by the largest there are unless others are given.

    >>> ag.ops.nan_to_num([[float("nan"), float("inf"), 1.0]], posinf=9.0).numpy().tolist()
    [[0.0, 9.0, 1.0]]
    """
    x, infinity = as_tensor(x), float("inf")
    largest = _LARGEST.get(x.dtype, 3.4028234663852886e38)
    most = largest if posinf is None else number_given("nan_to_num", "posinf", posinf)
    least = -largest if neginf is None else number_given("nan_to_num", "neginf", neginf)
    x = where(isnan(x), number_given("nan_to_num", "nan", nan), x)
    return where(lt(x, infinity), where(gt(x, -infinity), x, least), most)
