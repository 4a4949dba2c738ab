"""Losses: mean squared error, cross-entropy of probabilities and of logits.

Softmax and cross-entropy are one primitive that also computes the gradient of the logits.  No logarithm of a rounded
probability is taken.  A captured step writes the gradient over logits that are not needed any more.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ag.autograd.op import Cotangents, Ids, Need, Result, Run, op, part_of
from ag.autograd.operands import CLASS_RULE, checked_ids
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import mul, scale, sub, target_div, target_log
from ag.engine.kernels.reduce import sum_over
from ag.engine.kernels.softmax import log_softmax, softmax_cross_entropy, softmax_cross_entropy_ids
from ag.engine.primitive import PrimitiveTo
from ag.engine.shape import Shape
from ag.errors import ShapeError
from ag.ops.convert import ag_cast

__all__ = ["ag_cross_entropy_loss", "ag_mse_loss", "ag_softmax_cross_entropy_loss"]

_SOFTMAX_CE = "ag_softmax_cross_entropy_loss"


def _same_shape(function: str, pred: Buffer, target: Buffer) -> None:
    if pred.shape != target.shape:
        raise ShapeError(f"{function}: pred is {pred.shape} and target is {target.shape}; the shapes must be equal.")


def _batch(shape: Shape) -> int:
    return prod(shape[1:])


@op
def ag_mse_loss(run: Run, pred: Buffer, target: Buffer) -> Result[Buffer]:
    """Mean squared error over all elements.

    Reference: ggmlR ``ag_mse_loss`` (which gives the target no gradient).

    Parameters
    ----------
    pred : Tensor of any shape
    target : Tensor or array_like of the same shape
        A gradient flows to it too, if it is a parameter.

    Returns
    -------
    Tensor of shape ()

    Examples
    --------
    >>> ag.ag_mse_loss([[1.0, 3.0]], [[1.0, 1.0]]).item()
    2.0
    """
    _same_shape("ag_mse_loss", pred, target)
    if pred.size == 0:
        raise ShapeError(f"ag_mse_loss: pred is {pred.shape}; a mean needs at least one element.")
    d = run(sub, pred, target)
    axes = tuple(range(d.ndim))
    return sum_over(run, run(mul, d, d), axes, 1.0 / pred.size).view(()), d


@ag_mse_loss.vjp
def _mse_vjp(run: Run, g: Buffer, d: Buffer, need: Need) -> Cotangents:
    slope = run(mul, d, run(scale, g, factor=2.0 / d.size))
    return slope, run(scale, slope, factor=-1.0) if need[1] else None


@op
def ag_cross_entropy_loss(run: Run, pred: Buffer, target: Buffer) -> Result[tuple[Buffer, Buffer, Buffer]]:
    """Cross-entropy of probabilities, ``-sum(target * log(pred)) / batch``.

    For logits use `ag_softmax_cross_entropy_loss`, which is exact where this one rounds to 0 or 1.

    Parameters
    ----------
    pred : Tensor of shape (classes, ...)
        Probabilities, such as from `ag_softmax`; 0 where the target is not 0 gives an infinite loss, and 0 where the
        target is 0 counts as 0.
    target : Tensor or array_like of the same shape

    Returns
    -------
    Tensor of shape ()

    Examples
    --------
    >>> round(ag.ag_cross_entropy_loss([[0.5], [0.5]], [[1.0], [0.0]]).item(), 4)
    0.6931
    """
    _same_shape("ag_cross_entropy_loss", pred, target)
    batch = _batch(pred.shape)
    if batch == 0 or pred.ndim == 0:
        raise ShapeError(f"ag_cross_entropy_loss: pred is {pred.shape}; (classes, batch) with at least one sample is "
                         f"required.")
    logs = run(target_log, target, pred)
    total = sum_over(run, run(mul, target, logs), tuple(range(logs.ndim)), -1.0 / batch)
    return total.view(()), (pred, target, logs)


@ag_cross_entropy_loss.vjp
def _cross_entropy_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer, Buffer], need: Need) -> Cotangents:
    pred, target, logs = saved
    share = run(scale, g, factor=-1.0 / _batch(pred.shape))
    return (
        run(mul, run(target_div, target, pred), share) if need[0] else None,
        run(mul, logs, share) if need[1] else None,
    )


def ag_softmax_cross_entropy_loss(logits: TensorLike, target: TensorLike) -> Tensor:
    """Cross-entropy of ``softmax(logits)``, in log-sum-exp form; mean over samples.

    Exact for any logits, as nothing is rounded to 0 or 1 first.  Soft targets need not sum to 1, and get a gradient
    if they are parameters.
    Class ids are checked on the host: an array costs nothing, a tensor of ids is read back first, which a captured
    step refuses.
    Reference: ggmlR ``ag_softmax_cross_entropy_loss`` (capped at 16.1, and wrong for soft targets).

    Parameters
    ----------
    logits : Tensor of shape (classes, ...)
    target : Tensor or array_like of shape (classes, ...) or of shape (...)
        One-hot or soft distributions of any number type, or 0-based class ids.

    Returns
    -------
    Tensor of shape ()

    Examples
    --------
    >>> round(ag.ag_softmax_cross_entropy_loss([[0.0], [0.0]], [1]).item(), 4)
    0.6931
    """
    name = _SOFTMAX_CE
    shape, of_target = _shape_of(logits), _shape_of(target)
    if len(shape) == 1 and not isinstance(logits, Tensor):
        shape = (*shape, 1)  # a vector is a column
    if not shape or prod(shape) == 0:
        raise ShapeError(f"{name}: logits are {shape}; (classes, batch) with at least one of each is required.")
    one_sample = prod(shape[1:]) == 1
    is_vector = one_sample and len(shape) == 2 and of_target == shape[:1] and not isinstance(target, Tensor)
    if of_target == shape or (is_vector and of_target != (1,)):
        if isinstance(target, Tensor) and not target.buffer.dtype.is_float:
            target = ag_cast(target, "f32" if not isinstance(logits, Tensor) else logits.dtype)
        return _soft_target(logits, target)
    if of_target == shape[1:] or (len(shape) == 2 and of_target == (shape[1], 1)) or (one_sample and not of_target):
        return _class_ids(logits, checked_ids(name, logits, target, shape[0], "label", CLASS_RULE))
    raise ShapeError(f"{name}: logits are {shape} and target is {of_target}; "
                     f"the target must be {shape} (distributions) or {shape[1:]} (class ids).")


def _shape_of(x: TensorLike) -> Shape:
    try:
        return x.shape if isinstance(x, Tensor) else np.shape(x)
    except ValueError as error:  # rows of different lengths
        raise ShapeError(f"{_SOFTMAX_CE}: a {type(x).__name__} is no array ({error}); every row must have the same "
                         f"length.") from None


def _losses(run: Run, primitive: PrimitiveTo[tuple[Buffer, Buffer]], logits: Buffer, target: Buffer, soft: bool
            ) -> Result[tuple[Buffer, Buffer]]:
    """The mean loss, and what the gradient rule wants."""
    classes, batch = logits.shape[0], _batch(logits.shape)
    target = target.view((classes, batch) if soft else (batch,))
    losses, dx = run(primitive, logits.view((classes, batch)), target, factor=1.0 / batch)
    return sum_over(run, losses, (0, 1), 1.0 / batch).view(()), (logits, dx)


@part_of(_SOFTMAX_CE)
def _soft_target(run: Run, logits: Buffer, target: Buffer) -> Result[tuple[Buffer, Buffer]]:
    return _losses(run, softmax_cross_entropy, logits, target, True)


@_soft_target.vjp
def _soft_target_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    x, dx = saved
    dt = None
    if need[1]:
        share = run(scale, g, factor=-1.0 / dx.shape[1])
        dt = run(mul, run(log_softmax, x.view(dx.shape), axis=0), share).view(x.shape)
    return run(mul, dx, g).view(x.shape) if need[0] else None, dt


@part_of(_SOFTMAX_CE)
def _class_ids(run: Run, logits: Buffer, ids: Ids) -> Result[tuple[Buffer, Buffer]]:
    return _losses(run, softmax_cross_entropy_ids, logits, ids, False)


@_class_ids.vjp
def _class_ids_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    x, dx = saved
    return run(mul, dx, g).view(x.shape), None
