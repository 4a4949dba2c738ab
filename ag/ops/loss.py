"""Losses: mean squared error, cross-entropy of probabilities and of logits, also of single outputs.

Softmax and cross-entropy are one primitive that also computes the gradient of the logits, without the logarithm of a
rounded probability.  Losses with weights are composed of other ops, in float32 at least.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ag.autograd.op import Cotangents, Elements, Ids, Need, Result, Run, documented, no_gradient, op, part_of
from ag.autograd.operands import CLASS_RULE, as_array, checked_ids, lift, number_given, operands_on_one_device
from ag.autograd.tape import answered
from ag.autograd.tensor import Tensor, TensorLike, to_array
from ag.engine.buffer import Buffer
from ag.engine.kernels.convert import Placeholder, host_array
from ag.engine.kernels.elementwise import mul, of_numpy, scale, sub, target_div, target_log
from ag.engine.kernels.norm import log_softmax, softmax_cross_entropy, softmax_cross_entropy_ids, without
from ag.engine.kernels.reduce import expand, sum_over
from ag.engine.primitive import PrimitiveTo
from ag.engine.shape import Shape
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_clamp
from ag.ops.creation import ag_cast
from ag.ops.functions import logsigmoid, where
from ag.ops.indexing import ag_reshape
from ag.ops.reduce import ag_mean, ag_sum
from ag.ops.selection import chosen_by

__all__ = ["ag_bce_with_logits_loss", "ag_cross_entropy_loss", "ag_mse_loss", "ag_softmax_cross_entropy_loss"]

_SOFTMAX_CE, _BCE, _MSE = "ag_softmax_cross_entropy_loss", "ag_bce_with_logits_loss", "ag_mse_loss"
_TINY = 1e-30  # a batch in which no sample counts has the loss 0


def _same_shape(function: str, pred: Buffer, target: Buffer) -> None:
    if pred.shape != target.shape:
        raise ShapeError(f"{function}: pred is {pred.shape} and target is {target.shape}; the shapes must be equal.")


@documented
@answered
def ag_mse_loss(pred: TensorLike, target: TensorLike, *, sample_weight: TensorLike | None = None,
                reduction: str = "mean") -> Tensor:
    """Mean squared error over all elements; a gradient flows to the target, too, if it is a parameter.

    Reference: ggmlR ``ag_mse_loss`` (which gives the target no gradient).

    >>> ag.ag_mse_loss([[1.0, 3.0]], [[1.0, 1.0]]).item()
    2.0
    >>> ag.ag_mse_loss([[1.0, 3.0]], [[1.0, 1.0]], sample_weight=[3.0, 1.0]).item()
    1.0
    """
    is_mean = isinstance(reduction, str) and reduction == "mean"
    if is_mean and sample_weight is None:
        return _mean_squares(pred, target)
    p, t = wide(_MSE, pred, target)
    _same_shape(_MSE, p.buffer, t.buffer)
    squares, batch = (p - t) * (p - t), shape_of(_MSE, pred)[-1:]
    if is_mean:
        return _weighted_mean(_MSE, squares, None, sample_weight, batch)
    return reduced(_MSE, squares if sample_weight is None else squares * counting(
        _MSE, "sample_weight", sample_weight, squares, batch), reduction)


@part_of(_MSE)
def _mean_squares(run: Run, pred: Buffer, target: Buffer) -> Result[Buffer]:
    _same_shape(_MSE, pred, target)
    if pred.size == 0:
        raise ShapeError(f"ag_mse_loss: pred is {pred.shape}; a mean needs at least one element.")
    d = run(sub, pred, target)
    return sum_over(run, run(mul, d, d), tuple(range(d.ndim)), 1.0 / pred.size).view(()), d


@_mean_squares.vjp
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

    >>> round(ag.ag_cross_entropy_loss([[0.5], [0.5]], [[1.0], [0.0]]).item(), 4)
    0.6931
    """
    _same_shape("ag_cross_entropy_loss", pred, target)
    batch = prod(pred.shape[1:])
    if batch == 0 or pred.ndim == 0:
        raise ShapeError(f"ag_cross_entropy_loss: pred is {pred.shape}; (classes, batch) with at least one sample is "
                         f"required.")
    logs = run(target_log, target, pred)
    total = sum_over(run, run(mul, target, logs), tuple(range(logs.ndim)), -1.0 / batch)
    return total.view(()), (pred, target, logs)


@ag_cross_entropy_loss.vjp
def _cross_entropy_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer, Buffer], need: Need) -> Cotangents:
    pred, target, logs = saved
    share = run(scale, g, factor=-1.0 / prod(pred.shape[1:]))
    return (
        run(mul, run(target_div, target, pred), share) if need[0] else None,
        run(mul, logs, share) if need[1] else None,
    )


@documented
@answered
def ag_softmax_cross_entropy_loss(logits: TensorLike, target: TensorLike, *, weight: TensorLike | None = None,
                                  label_smoothing: float = 0.0, sample_weight: TensorLike | None = None) -> Tensor:
    """Cross-entropy of ``softmax(logits)``, in log-sum-exp form; mean over samples.

    Exact for any logits.  Soft targets need not sum to 1, and get a gradient if they are parameters.
    Class ids are checked on the host, so a tensor of ids is read back first, which a captured step refuses.
    Reference: PyTorch ``F.cross_entropy``; ggmlR ``ag_softmax_cross_entropy_loss`` (capped at 16.1, and wrong for soft
    targets).

    Parameters
    ----------
    logits : Tensor of shape (classes, ...)
    target : Tensor or array_like of shape (classes, ...) or of shape (...)
        One-hot or soft distributions of any number type, or 0-based class ids.
    weight : Tensor or array_like of shape (classes,), optional
        What each class counts.  With ids the mean is over what the samples count; with distributions it is over their
        number, as in PyTorch.
    label_smoothing : float, optional
        The share of every target, from 0 to 1, that is spread evenly over all classes.

    >>> round(ag.ag_softmax_cross_entropy_loss([[0.0], [0.0]], [1]).item(), 4)
    0.6931
    >>> logits = [[2.0, 0.0], [0.0, 0.0]]
    >>> round(ag.ag_softmax_cross_entropy_loss(logits, [0, 1], weight=[1.0, 9.0]).item(), 4)
    0.6365
    """
    shape, ids, soft = targets_of(_SOFTMAX_CE, logits, target)
    if weight is None and sample_weight is None and number_given(_SOFTMAX_CE, "label_smoothing", label_smoothing) == 0:
        return _of_distributions(logits, soft, True) if ids is None else _of_ids(logits, ids, True)
    losses, counts = class_losses(_SOFTMAX_CE, logits, shape, ids, soft, weight, label_smoothing)
    return _weighted_mean(_SOFTMAX_CE, losses, counts, sample_weight, shape[1:][-1:])


def targets_of(name: str, logits: TensorLike, target: TensorLike, ignore: int | None = None
             ) -> tuple[Shape, Tensor | None, TensorLike]:
    """Return the shape of logits, and as targets class ids, or None and distributions."""
    shape, of_target = shape_of(name, logits), shape_of(name, target)
    if len(shape) == 1 and not isinstance(logits, Tensor):
        shape = (*shape, 1)  # a vector is a column
    if not shape or prod(shape) == 0:
        raise ShapeError(f"{name}: logits are {shape}; (classes, batch) with at least one of each is required.")
    one_sample = prod(shape[1:]) == 1
    is_vector = one_sample and len(shape) == 2 and of_target == shape[:1] and not isinstance(target, Tensor)
    if of_target == shape or (is_vector and of_target != (1,)):
        return shape, None, as_float(target, logits)
    if of_target == shape[1:] or (len(shape) == 2 and of_target == (shape[1], 1)) or (one_sample and not of_target):
        rule = CLASS_RULE if shape[0] > 1 else f"{CLASS_RULE}, and one output is of class 0 only: use {_BCE} for it"
        return shape, checked_ids(name, logits, target, shape[0], "label", rule, ignore is not None, ignore), target
    raise ShapeError(f"{name}: logits are {shape} and target is {of_target}; "
                     f"the target must be {shape} (distributions) or {shape[1:]} (class ids).")


def class_losses(name: str, logits: TensorLike, shape: Shape, ids: Tensor | None, soft: TensorLike,
                 weight: TensorLike | None, smoothing: float, ignore: int | None = None
                 ) -> tuple[Tensor, Tensor | None]:
    """Return the cross-entropy of each sample, and what each counts in a mean; None if that is 1."""
    smoothing = number_given(name, "label_smoothing", smoothing)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing is {smoothing!r}; a number from 0 to 1 is required.")
    x = _flat(wide(name, logits)[0], 2)
    w, even = class_weights(name, weight, x), smoothing / shape[0]
    if ids is None:
        soft = ag_reshape(wide(name, logits, soft)[1], *x.shape)
        soft = soft * (1 - smoothing) + even if smoothing else soft
        return _of_distributions(x, soft if w is None else soft * w, False), None
    places = _flat(ids if ignore is None else without_ignored(ids, ignore), 1)
    kept = None if ignore is None else counts_of(None, x, places)
    losses, counts = _of_ids(x, places, False), kept
    if w is not None:
        counts = counts_of(w, x, places)
        losses = losses * counts
    if smoothing:
        of_all = _of_distributions(x, even if w is None else w * even, False)
        of_all = of_all if kept is None else where(kept, of_all, 0.0)
        losses = losses * (1 - smoothing) + of_all
    return losses, counts


def _flat(x: Tensor, ndim: int) -> Tensor:
    """Return samples along one axis, behind that of the classes if `ndim` is 2."""
    return x if x.ndim == ndim else ag_reshape(x, *x.shape[: ndim - 1], -1)


def class_weights(function: str, weight: TensorLike | None, x: Tensor) -> Tensor | None:
    """Return what classes count, as a column beside `x`."""
    if weight is None:
        return None
    return ag_reshape(counting(function, "weight", weight, x, (len(x),), (len(x), 1), fixed=True), len(x), 1)


def counts_of(weights: Tensor | None, x: Tensor, places: Tensor) -> Tensor:
    """Return what samples of these classes count, 0 for `NOTHING`."""
    b = x.buffer
    ones = np.ones((len(x), 1), b.dtype.numpy_name)
    return chosen_by(Tensor(b.backend.constant(ones, b.dtype)) if weights is None else weights, places, (0, 2))


@part_of("cross_entropy")
def without_ignored(run: Run, ids: Elements, ignore: int) -> Result[None]:
    """Class ids, but `NOTHING` where they are `ignore`."""
    return run(without, ids, ignore=ignore), None


without_ignored.vjp(no_gradient)


@documented
@answered
def ag_bce_with_logits_loss(logits: TensorLike, target: TensorLike, *, weight: TensorLike | None = None,
                            pos_weight: TensorLike | None = None, sample_weight: TensorLike | None = None) -> Tensor:
    """Binary cross-entropy of ``sigmoid(logits)``, in log-sum-exp form; mean over all elements.

    Reference: PyTorch ``F.binary_cross_entropy_with_logits``.

    Parameters
    ----------
    logits : Tensor of shape (outputs, ...)
    target : Tensor or array_like of the same shape
        From 0 to 1; with one output also of shape (...).
    weight : Tensor or array_like of the same shape or of shape (batch,), optional
        Factors of the losses.  The mean is over their number, as in PyTorch.
    pos_weight : Tensor or array_like of shape (outputs,), or float, optional
        What the targets 1 of each output count, where those of 0 count 1.

    >>> round(ag.ag_bce_with_logits_loss([[0.0, 2.0]], [[1.0, 1.0]]).item(), 4)
    0.41
    """
    shape = shape_of(_BCE, logits)
    if prod(shape) == 0:
        raise ShapeError(f"{_BCE}: logits are {shape}; a mean needs at least one element.")
    losses = binary_losses(_BCE, logits, target, weight, pos_weight)
    return _weighted_mean(_BCE, losses, None, sample_weight, shape[-1:])


def binary_losses(function: str, logits: TensorLike, target: TensorLike, weight: TensorLike | None,
                  pos_weight: TensorLike | None) -> Tensor:
    """Return the cross-entropy of each output of each sample."""
    shape, of_target = shape_of(function, logits), shape_of(function, target)
    if of_target != shape and not (shape[:1] == (1,) and of_target == shape[1:]):
        raise ShapeError(f"{function}: logits are {shape} and target is {of_target}; the shapes must be equal.")
    refuse_beyond(function, target)
    x, t = wide(function, logits, as_float(target, logits))
    t = t if t.shape == shape else ag_reshape(t, *shape)
    if pos_weight is None:
        losses = _logistic(x, t)
    else:
        outputs = shape[0] if len(shape) > 1 else 1
        positive = counting(function, "pos_weight", pos_weight, x, (outputs,), (outputs, 1), (), fixed=True)
        positive = ag_reshape(positive, -1, *[1] * (max(1, x.ndim) - 1))
        losses = (t - 1) * logsigmoid(-x) - ag_reshape(t * positive, *shape) * logsigmoid(x)
    if weight is not None:
        losses = losses * counting(function, "weight", weight, x, *({shape[-1:], shape} - {()}), signed=True)
    return losses


# Targets of 0 and 1 leave all digits of a loss and of its slope, sigmoid(x) - t.
_loss = of_numpy("logistic", lambda x, t: (1 - t) * np.maximum(x, 0) + t * np.maximum(-x, 0) +
                 np.log1p(np.exp(-np.abs(x))), "ab")
_slope = of_numpy("logistic_slope", lambda x, t: np.where(
    x > 0, 1 - t - 1 / (1 + np.exp(np.abs(x))), 1 / (1 + np.exp(np.abs(x))) - t), "ab")


@part_of(_BCE)
def _logistic(run: Run, x: Buffer, t: Buffer) -> Result[tuple[Buffer, Buffer]]:
    return run(_loss, x, t), (x, t)


@_logistic.vjp
def _logistic_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    x, t = saved
    dx = run(mul, g, run(_slope, x, t)) if need[0] else None
    return dx, run(scale, run(mul, g, x), factor=-1.0) if need[1] else None


def refuse_beyond(function: str, target: object) -> None:
    """Refuse targets of `ag_bce_with_logits_loss` outside of 0 to 1, where their values are on the host."""
    if type(target) is np.ndarray and target.size and (target.min() < 0 or target.max() > 1):
        raise ValueError(f"{function}: targets go from {target.min()} to {target.max()}; probabilities, or 0 and 1, "
                         f"are required.")


def shape_of(function: str, x: TensorLike) -> Shape:
    return np.shape(x if hasattr(x, "shape") else to_array(host_array, x, function))


def as_float(target: TensorLike, logits: TensorLike) -> TensorLike:
    """Return a tensor of whole numbers in the type of the logits."""
    if isinstance(target, Tensor) and not target.buffer.dtype.is_float:
        return ag_cast(target, "f32" if not isinstance(logits, Tensor) else logits.dtype)
    return target


def wide(function: str, *given: TensorLike) -> list[Tensor]:
    """Return operands as tensors on one device, in float32 instead of 16 bits."""
    _, tensors, dtype = operands_on_one_device(function, given)
    return [ag_cast(x, "f32") if dtype.is_half else x for x in tensors]


def counting(function: str, name: str, given: TensorLike, x: Tensor, *shapes: Shape, fixed: bool = False,
              signed: bool = False) -> Tensor:
    """Return weights of one of the shapes as a tensor like `x`; `fixed` ones are constants, also of a captured step."""
    if (shape := shape_of(function, given)) not in shapes:
        raise ShapeError(f"{function}: {name} is {shape}; {' or '.join(map(str, shapes))} is required.")
    if isinstance(given, Tensor):
        return wide(function, given)[0]
    backend, dtype = x.buffer.backend, x.buffer.dtype
    if isinstance(given, Placeholder):
        return lift(given, backend, dtype, function)
    values = as_array(given, function)
    if not (signed or (values >= 0).all()):
        raise ValueError(f"{function}: {name} goes from {values.min()} to {values.max()}; numbers of at least 0 are "
                         f"required.")
    return Tensor(backend.constant(values, dtype)) if fixed else lift(values, backend, dtype, function)


def _weighted_mean(function: str, losses: Tensor, counts: Tensor | None, sample_weight: TensorLike | None,
                   batch: Shape) -> Tensor:
    """Return the mean of losses with the batch last, over what they count, times what their samples count."""
    if sample_weight is None:
        return ag_mean(losses) if counts is None else ag_sum(losses) / ag_clamp(ag_sum(counts), _TINY)
    of_sample = counting(function, "sample_weight", sample_weight, losses, batch or (1,))
    losses, each = ag_reshape(losses, -1, of_sample.size) * of_sample, losses.size / of_sample.size
    total = ag_sum(of_sample) * each if counts is None else ag_sum(ag_reshape(counts, -1, of_sample.size) * of_sample)
    return ag_sum(losses) / ag_clamp(total, _TINY)


def reduced(function: str, losses: Tensor, reduction: str, counts: Tensor | None = None) -> Tensor:
    """Return losses, their sum, or their mean, over what they count."""
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{function}: reduction is {reduction!r:.60}; use 'mean', 'sum' or 'none'.")
    if reduction == "none":
        return losses
    if reduction == "sum":
        return ag_sum(losses)
    return ag_mean(losses) if counts is None else ag_sum(losses) / ag_sum(counts)


def _losses(run: Run, primitive: PrimitiveTo[tuple[Buffer, Buffer]], logits: Buffer, target: Buffer, mean: bool
            ) -> Result[tuple[Buffer, Buffer]]:
    """The losses of samples or their mean, and what the gradient rule wants."""
    classes, batch = logits.shape[0], prod(logits.shape[1:])
    factor = 1.0 / batch if mean else 1.0
    losses, dx = run(primitive, logits.view((classes, batch)), target, factor=factor)
    return sum_over(run, losses, (0, 1), factor).view(()) if mean else losses.view((batch,)), (logits, dx)


@part_of(_SOFTMAX_CE)
def _of_distributions(run: Run, logits: Buffer, target: Buffer, mean: bool) -> Result[tuple[Buffer, Buffer]]:
    """Losses beside targets of 0 are 0, even of logits of -inf.  One number or column is the target of all samples."""
    shape = logits.shape[0], prod(logits.shape[1:])
    target = target.view(shape) if target.size == logits.size else run(
        expand, target.view((target.size, 1)), shape=shape, factor=1.0)
    return _losses(run, softmax_cross_entropy, logits, target, mean)


@part_of(_SOFTMAX_CE)
def _of_ids(run: Run, logits: Buffer, ids: Ids, mean: bool) -> Result[tuple[Buffer, Buffer]]:
    return _losses(run, softmax_cross_entropy_ids, logits, ids.view((ids.size,)), mean)


@_of_distributions.vjp
@_of_ids.vjp
def _softmax_cross_entropy_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need,
                               mean: bool) -> Cotangents:
    x, dx = saved
    dt = None
    if need[1]:
        share = run(scale, g, factor=-1.0 / dx.shape[1] if mean else -1.0)
        dt = run(mul, run(log_softmax, x.view(dx.shape), axis=0), share).view(x.shape)
    return run(mul, dx, g).view(x.shape) if need[0] else None, dt
