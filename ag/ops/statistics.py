"""Variance, norms and their like, composed of other ops along axes `dim` (None: all)."""

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
from ag.engine.shape import broadcast, normalize_axes
from ag.ops.activation import ag_softmax
from ag.ops.arithmetic import ag_abs, ag_clamp, ag_div, ag_exp, ag_log, ag_mul, ag_pow, ag_scale, ag_sqrt, ag_sub
from ag.ops.functions import eq, isfinite, maximum, ne, square, where
from ag.ops.indexing import ag_reshape
from ag.ops.reduce import ag_max, ag_mean, ag_sum, argmax, min
from ag.ops.selection import gather
from ag.ops.shapes import expand

__all__ = ["amax", "amin", "aminmax", "argmin", "cosine_similarity", "count_nonzero", "logsumexp", "max_with_indices",
           "min_with_indices", "norm", "normalize", "softmin", "std", "var", "var_mean"]

Dim = int | tuple[int, ...] | None
F = TypeVar("F", bound=Callable[..., object])


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
    """Largest element along axes; equal ones share the gradient equally.  Reference: PyTorch ``amax``.

    >>> ag.ops.amax([[1.0, 4.0], [3.0, 2.0]], dim=1).numpy().tolist()
    [4.0, 3.0]
    """
    return ag_max(x, dim, keepdim)


@composed
def amin(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest element along axes, as `min`.  Reference: PyTorch ``amin``."""
    return min(x, dim, keepdim)


@composed
def aminmax(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest and largest element along axes, as `min` and `max`.  Reference: PyTorch ``aminmax``.

    >>> [t.item() for t in ag.ops.aminmax([[1.0, 4.0]])]
    [1.0, 4.0]
    """
    return min(x, dim, keepdim), ag_max(x, dim, keepdim)


@composed
def argmin(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Place of the smallest element along an axis, or among all, as `argmax`; NaN counts as smallest.

    >>> ag.ops.argmin([[1.0, 4.0], [3.0, 2.0]], dim=1).numpy().tolist()
    [0, 1]
    """
    return argmax(ag_scale(x, -1.0), dim, keepdim)


@composed
def count_nonzero(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Count the elements along axes that are not 0, in floats.  Reference: PyTorch ``count_nonzero``.

    >>> ag.ops.count_nonzero([[0.0, 2.0], [3.0, 4.0]]).item()
    3.0
    """
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
    """Smallest element along an axis, and its place, as `argmin`; of equal ones the first alone gets the gradient.

    Reference: PyTorch ``min`` with an axis.

    >>> [t.numpy().tolist() for t in ag.ops.min_with_indices([[1.0, 4.0], [3.0, 2.0]], 1)]
    [[1.0, 2.0], [0, 1]]
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
    """Variance and mean along axes.  Reference: PyTorch ``var_mean``.

    >>> variance, mean = ag.ops.var_mean([[1.0, 3.0]])
    >>> variance.item(), mean.item()
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
    """Standard deviation along axes, the root of `var`; equal elements get the gradient 0.  Reference: PyTorch ``std``.

    >>> round(ag.ops.std([[1.0, 3.0]]).item(), 4)
    1.4142
    """
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
def cosine_similarity(a: TensorLike, b: TensorLike, dim: Dim = 0, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along an axis, here the features.

    Reference: PyTorch ``cosine_similarity``, whose default is axis 1.

    >>> ag.ops.cosine_similarity([[3.0], [4.0]], [[-3.0], [-4.0]]).numpy().round(3).tolist()
    [-1.0]
    """
    a, b = operands_on_one_device("cosine_similarity", (a, b))[1]
    shape, least = broadcast(a.shape, b.shape), number_given("cosine_similarity", "eps", eps)
    a, b = expand(a, shape), expand(b, shape)
    return ag_sum(ag_mul(ag_div(a, maximum(norm(a, 2.0, dim, True), least)),
                         ag_div(b, maximum(norm(b, 2.0, dim, True), least))), dim)


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
    """`softmax` of the negated elements.  Reference: PyTorch ``softmin``.

    >>> ag.ops.softmin([[1.0], [1.0]]).numpy().tolist()
    [[0.5], [0.5]]
    """
    return ag_softmax(ag_scale(x, -1.0), dim)
