"""Elementwise functions of several operands or numbers, composed of other ops."""

from __future__ import annotations

from ag.autograd.create import as_tensor
from ag.autograd.op import composed
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import normalize_axis
from ag.errors import ShapeError
from ag.ops.activation import ag_sigmoid
from ag.ops.arithmetic import ag_add, ag_div, ag_mul, ag_scale, ag_sub
from ag.ops.functions import gt, isnan, le, lt, where

__all__ = ["addcdiv", "addcmul", "glu", "hardtanh", "lerp", "nan_to_num", "prelu", "threshold"]

_LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f64": 1.7976931348623157e308}  # others: that of float32


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
    before, half = (slice(None),) * axis, x.shape[axis] // 2
    return ag_mul(x[(*before, slice(half))], ag_sigmoid(x[(*before, slice(half, None))]))


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
    """``a + weight * (b - a)``.

    >>> ag.ops.lerp([[0.0]], [[10.0]], 0.25).item()
    2.5
    """
    return ag_add(a, ag_mul(weight, ag_sub(b, a)))


@composed
def addcmul(x: TensorLike, a: TensorLike, b: TensorLike, value: float = 1.0) -> Tensor:
    """``x + value * a * b``.

    >>> ag.ops.addcmul([[1.0]], [[2.0]], [[3.0]], 10.0).item()
    61.0
    """
    return ag_add(x, ag_scale(ag_mul(a, b), value))


@composed
def addcdiv(x: TensorLike, a: TensorLike, b: TensorLike, value: float = 1.0) -> Tensor:
    """``x + value * a / b``.

    >>> ag.ops.addcdiv([[1.0]], [[6.0]], [[3.0]], 10.0).item()
    21.0
    """
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
