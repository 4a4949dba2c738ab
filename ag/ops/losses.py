"""Losses under PyTorch's names, composed of other ops: of classes, probabilities, numbers, and margins.

The batch is the last axis, features and classes the first.  Losses of 16-bit operands are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log, pi, prod
from typing import TypeVar, cast

from ag.autograd.create import as_tensor, filled
from ag.autograd.frozen import FrozenTensor
from ag.autograd.op import composed, documented
from ag.autograd.operands import CLASS_RULE, as_input, checked_ids, number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.dtype import F32
from ag.engine.shape import Shape, true_or_false, whole_number
from ag.errors import ShapeError
from ag.ops import loss as parts
from ag.ops.activation import ag_sigmoid
from ag.ops.arithmetic import ag_abs, ag_clamp, ag_exp, ag_log, ag_pow, ag_sqrt
from ag.ops.compositions import norm
from ag.ops.functions import eq, gt, isnan, log1p, lt, minimum, ne, softplus, square, where
from ag.ops.indexing import ag_concat, ag_reshape
from ag.ops.matmul import ag_matmul
from ag.ops.reduce import ag_sum
from ag.ops.selection import gathered_by

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy",
           "dice_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
           "linear_cross_entropy", "margin_ranking_loss", "multi_margin_loss", "nll_loss", "poisson_nll_loss",
           "sigmoid_focal_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss"]

F = TypeVar("F", bound=Callable[..., object])
_ALL = "loss"  # what helpers call the function in messages, where `composed` puts its name
_number, _flag, _reduced = partial(number_given, _ALL), partial(true_or_false, _ALL), partial(parts.reduced, _ALL)
_shape_of, _wide = partial(parts.shape_of, _ALL), partial(parts.wide, _ALL)


def _loss(function: F) -> F:
    return composed(documented(function))


def _pair(input: TensorLike, *others: TensorLike) -> list[Tensor]:
    """Return tensors of one shape, in float32 at least."""
    if len({*map(_shape_of, (input, *others))}) > 1:
        shapes = " and ".join(str(_shape_of(x)) for x in (input, *others))
        raise ShapeError(f"{_ALL}: operands are {shapes}; the shapes must be equal.")
    return _wide(input, *[parts.as_float(x, input) for x in others])


def _positive(name: str, value: float) -> float:
    if not _number(name, value) > 0:
        raise ValueError(f"{_ALL}: {name} is {value}; a positive number is required.")
    return float(value)


def _weighted(losses: Tensor, weight: TensorLike | None) -> tuple[Tensor, Tensor | None]:
    """Return losses times factors of all, or of samples, and these."""
    if weight is None:
        return losses, None
    w = parts.counting(_ALL, "weight", weight, losses, losses.shape, losses.shape[-1:], signed=True)
    return losses * w, w


@_loss
def cross_entropy(logits: TensorLike, target: TensorLike, weight: TensorLike | None = None, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of ``softmax(logits)`` over the first axis, by class ids or probabilities.

    Ids that a captured step computes, such as those of `argmax`, are not checked: what is no class makes NaN.

    Parameters
    ----------
    logits : Tensor of shape (classes, ...)
    target : Tensor or array_like of shape (...), class ids, or of shape (classes, ...), probabilities
    weight : Tensor or array_like of shape (classes,), optional
        What each class counts.  With ids the mean is over what the samples count.
    ignore_index : int, optional
        An id whose samples count nothing; if all do, the mean is NaN.
    label_smoothing : float, optional
        The share of every target, from 0 to 1, that is spread evenly over all classes.

    >>> round(ag.ops.cross_entropy([[0.0, 5.0], [0.0, 0.0]], [1, -100]).item(), 4)
    0.6931
    """
    ignore = _ignored(ignore_index)
    shape, ids, soft = parts.targets_of(_ALL, logits, target, ignore)
    if ids is None and ignore != -100:
        raise ValueError(f"{_ALL}: ignore_index is {ignore} and the target has probabilities; it is for class ids.")
    losses, counts = parts.class_losses(_ALL, logits, shape, ids, soft, weight, label_smoothing, ignore)
    return _reduced(losses if len(shape) == 2 else ag_reshape(losses, *shape[1:]), reduction, counts)


_LOGITS = 1 << 22  # that are there at a time, about


@_loss
def linear_cross_entropy(W: TensorLike | FrozenTensor, h: TensorLike, ids: TensorLike, weight: TensorLike | None = None,
                         ignore_index: int = -100, label_smoothing: float = 0.0, chunk: int | None = None,
                         reduction: str = "mean") -> Tensor:
    """Cross-entropy of the logits ``W @ h`` by class ids, without ever making all of these logits.

    The logits of some samples are made at a time, in `backward` once more.
    Reference: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", ICLR 2025.

    Parameters
    ----------
    W : Tensor or FrozenTensor of shape (classes, features)
        Such as a table of word vectors.
    h : Tensor of shape (features, ...)
    ids : Tensor or array_like of shape (...)
        Class ids.
    weight, ignore_index, label_smoothing
        As in `cross_entropy`.
    chunk : int, optional
        The number of samples at a time; by default as many as have four million logits.

    >>> W, h = ag.ops.eye(2), [[3.0, 0.0], [0.0, 0.0]]
    >>> round(ag.ops.linear_cross_entropy(W, h, [0, 1]).item(), 4)
    0.3709
    """
    from ag.autograd.activation_checkpoint import ag_checkpoint  # which takes time to load

    table = cast(TensorLike, W)  # as ops take a frozen tensor, too
    of_table, shape, ignore = _shape_of(table), _shape_of(h), _ignored(ignore_index)
    if len(of_table) != 2 or not shape or shape[0] != of_table[1] or _shape_of(ids) != shape[1:] or 0 in shape:
        raise ShapeError(f"{_ALL}: W is {of_table}, h is {shape} and ids are {_shape_of(ids)}; (classes, features), "
                         f"(features, ...) and (...) are required, with at least one of each.")
    if isinstance(W, FrozenTensor):
        h = as_input(h, W)
        beside = filled((of_table[0], 1), 1.0, h.buffer.backend, F32)
    else:
        table = W = as_tensor(W)
        beside = _wide(W[:, :1])[0]  # the weights of classes are of its type, and on its device
    labels = checked_ids(_ALL, beside, ids, of_table[0], "label", CLASS_RULE, True, ignore)
    columns, labels, samples = ag_reshape(h, shape[0], -1), ag_reshape(labels, -1), prod(shape[1:])
    size = max(1, _LOGITS // of_table[0]) if chunk is None else whole_number(_ALL, "chunk", chunk)
    if size < 1:
        raise ValueError(f"{_ALL}: chunk is {chunk}; at least one sample is required.")

    of_classes = parts.class_weights(_ALL, weight, beside)

    def losses_of(W: TensorLike, h: Tensor, ids: Tensor) -> Tensor:
        logits = ag_matmul(W, h)
        return parts.class_losses(_ALL, logits, logits.shape, ids, ids, of_classes, label_smoothing, ignore)[0]

    losses = ag_concat([ag_checkpoint(losses_of, table, columns[:, i : i + size], labels[i : i + size])
                        for i in range(0, samples, size)], 0)
    counts = parts.counts_of(of_classes, beside, parts.without_ignored(labels, ignore))
    return _reduced(ag_reshape(losses, *shape[1:]), reduction, counts)


def _ignored(index: int) -> int:
    return max(-1 << 31, min(whole_number(_ALL, "ignore_index", index), (1 << 31) - 1))


def _labels(input: TensorLike, target: TensorLike, ignore: int) -> tuple[Tensor, Tensor, Shape]:
    """Return `input` as one column for each sample, the class ids of these, and their shape."""
    shape, of_target = _shape_of(input), _shape_of(target)
    if not shape or of_target != shape[1:]:
        raise ShapeError(f"{_ALL}: input is {shape} and target is {of_target}; (classes, ...) and (...), class ids, "
                         f"are required.")
    ids = checked_ids(_ALL, input, target, shape[0], "label", CLASS_RULE, True, ignore)
    return ag_reshape(_wide(input)[0], shape[0], -1), ag_reshape(parts.without_ignored(ids, ignore), -1), of_target


def _picked(x: Tensor, ids: Tensor) -> Tensor:
    """Return an element of each column of a matrix by its id, 0 for `NOTHING`."""
    return ag_reshape(gathered_by(x, ag_reshape(ids, 1, -1), 0), -1)


@_loss
def nll_loss(input: TensorLike, target: TensorLike, weight: TensorLike | None = None, ignore_index: int = -100,
             reduction: str = "mean") -> Tensor:
    """Negative log-likelihood: minus the logarithms of probabilities, such as of `log_softmax`, at class ids.

    `cross_entropy` is quicker for logits; other arguments are as there.

    >>> ag.ops.nll_loss([[-1.0, -2.0], [-3.0, -4.0]], [0, 1]).item()
    2.5
    """
    x, ids, shape = _labels(input, target, _ignored(ignore_index))
    counts = parts.counts_of(parts.class_weights(_ALL, weight, x), x, ids)
    return _reduced(ag_reshape(_picked(x, ids) * counts * -1.0, *shape), reduction, counts)


@_loss
def multi_margin_loss(input: TensorLike, target: TensorLike, p: int = 1, margin: float = 1.0,
                      weight: TensorLike | None = None, reduction: str = "mean") -> Tensor:
    """Scores of other classes within a margin of the right one's, to the power `p`, added up over the number of all.

    >>> ag.ops.multi_margin_loss([[1.0], [0.5]], [0]).item()
    0.25
    """
    if p not in (1, 2):
        raise ValueError(f"{_ALL}: p is {p!r:.60}; 1 or 2 is required.")
    x, ids, shape = _labels(input, target, -(1 << 31))
    width = _number("margin", margin)
    near = ag_clamp(x - _picked(x, ids) + width, 0.0)
    losses = ag_sum(square(near) if p == 2 else near, 0) - max(width, 0.0)**p  # which the right class adds
    counts = parts.counts_of(parts.class_weights(_ALL, weight, x), x, ids)
    return _reduced(ag_reshape(losses * counts / len(x), *shape), reduction)


@_loss
def binary_cross_entropy_with_logits(logits: TensorLike, target: TensorLike, weight: TensorLike | None = None,
                                     reduction: str = "mean", pos_weight: TensorLike | None = None) -> Tensor:
    """Binary cross-entropy of ``sigmoid(logits)``, exact for any logits.

    `weight` has factors of the losses, or of samples.  `pos_weight` is what targets of 1 count, for each place of the
    first axis.

    >>> round(ag.ops.binary_cross_entropy_with_logits([[0.0, 2.0]], [[1.0, 1.0]]).item(), 4)
    0.41
    """
    losses = parts.binary_losses(_ALL, logits, target, None, pos_weight)
    return _reduced(_weighted(losses, weight)[0], reduction)


@_loss
def binary_cross_entropy(input: TensorLike, target: TensorLike, weight: TensorLike | None = None,
                         reduction: str = "mean") -> Tensor:
    """Binary cross-entropy of probabilities, whose logarithms are at least -100; `weight` has factors of the losses.

    For logits use `binary_cross_entropy_with_logits`, which is exact where this one rounds to 0 or 1.

    >>> ag.ops.binary_cross_entropy([[0.0, 1.0]], [[1.0, 1.0]]).item()
    50.0
    """
    parts.refuse_beyond(_ALL, target)
    p, t = _pair(input, target)
    q = p.detach()
    losses = (t - 1.0) * ag_clamp(log1p(-q), -100.0) - t * ag_clamp(ag_log(q), -100.0)
    slope = (q - t.detach()) / ag_clamp(q * (1.0 - q), 1e-12)  # finite at 0 and 1
    return _reduced(_weighted(losses + slope * (p - q), weight)[0], reduction)


@_loss
def sigmoid_focal_loss(inputs: TensorLike, targets: TensorLike, alpha: float = 0.25, gamma: float = 2.0,
                       reduction: str = "none") -> Tensor:
    """Binary cross-entropy of logits, in which what is right already counts little: ``(1 - p)**gamma``.

    Targets of 1 count `alpha`, those of 0 ``1 - alpha``; with a negative `alpha` all count 1.
    Reference: torchvision ``sigmoid_focal_loss``; Lin et al., "Focal Loss for Dense Object Detection".

    >>> round(ag.ops.sigmoid_focal_loss([[0.0]], [[1.0]], reduction="mean").item(), 4)
    0.0433
    """
    parts.refuse_beyond(_ALL, targets)
    x, t = _pair(inputs, targets)
    losses = parts.binary_losses(_ALL, x, t, None, None)
    missed = t * ag_sigmoid(-x) + (1.0 - t) * ag_sigmoid(x)
    losses = losses * ag_pow(missed, _number("gamma", gamma))
    return _reduced(losses * (t * (2 * alpha - 1) + (1 - alpha)) if _number("alpha", alpha) >= 0 else losses, reduction)


@_loss
def dice_loss(input: TensorLike, target: TensorLike, smooth: float = 1.0, reduction: str = "mean") -> Tensor:
    """``1 - (2 * overlap + smooth) / (sizes + smooth)`` of masks: probabilities of shape (classes, ..., batch).

    There is a loss for each class and sample; the axes between have pixels.
    Reference: Milletari, Navab, Ahmadi, "V-Net", 3DV 2016.

    >>> round(ag.ops.dice_loss([[[1.0], [0.0]]], [[[1.0], [1.0]]], smooth=0.0).item(), 4)
    0.3333
    """
    p, t = _pair(input, target)
    if p.ndim < 3:
        raise ShapeError(f"{_ALL}: input is {p.shape}; (classes, ..., batch) with pixels between is required.")
    pixels, more = tuple(range(1, p.ndim - 1)), _number("smooth", smooth)
    return _reduced(1.0 - (ag_sum(p * t, pixels) * 2.0 + more) / (ag_sum(p + t, pixels) + more), reduction)


@_loss
def kl_div(input: TensorLike, target: TensorLike, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence, ``target * (log(target) - input)``, of logarithms of probabilities from a target.

    A target of 0 has the divergence 0.  With `log_target` the target has logarithms, too.  The reduction "batchmean"
    divides the sum by the batch.

    >>> round(ag.ops.kl_div([[-0.6931], [-0.6931]], [[1.0], [0.0]], "batchmean").item(), 4)
    0.6931
    """
    x, t = _pair(input, target)
    if _flag("log_target", log_target):
        losses = ag_exp(t) * (t - x)
    else:
        some = ne(t, 0.0) | isnan(x)
        losses = t * (ag_log(where(some, t, 1.0)) - where(some, x, 0.0))
    return ag_sum(losses) / ([*x.shape] or [1])[-1] if reduction == "batchmean" else _reduced(losses, reduction)


@_loss
def l1_loss(input: TensorLike, target: TensorLike, reduction: str = "mean", weight: TensorLike | None = None) -> Tensor:
    """Absolute differences, times a weight; the mean is over the weights.

    >>> ag.ops.l1_loss([[1.0, 4.0]], [[2.0, 2.0]]).item()
    1.5
    """
    x, t = _pair(input, target)
    losses, weights = _weighted(ag_abs(x - t), weight)
    return _reduced(losses, reduction, weights)


@_loss
def huber_loss(input: TensorLike, target: TensorLike, reduction: str = "mean", delta: float = 1.0,
               weight: TensorLike | None = None) -> Tensor:
    """Half of squared differences up to `delta`, and a straight line beyond; times a weight.

    >>> ag.ops.huber_loss([[1.0, 4.0]], [[2.0, 2.0]], "none").numpy().tolist()
    [[0.5, 1.5]]
    """
    x, t = _pair(input, target)
    size = ag_abs(x - t)
    slope = ag_clamp(size.detach(), hi=_positive("delta", delta))  # the nearest straight line, so its gradient is 0
    return _reduced(_weighted(slope * (size - slope * 0.5), weight)[0], reduction)


@_loss
def smooth_l1_loss(input: TensorLike, target: TensorLike, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """`huber_loss` over `beta`: absolute differences, but squared ones below `beta`.

    >>> ag.ops.smooth_l1_loss([[1.0, 4.0]], [[2.0, 2.0]], "none").numpy().tolist()
    [[0.5, 1.5]]
    """
    if _number("beta", beta) == 0:
        return l1_loss(input, target, reduction)
    return huber_loss(input, target, reduction, _positive("beta", beta)) / beta


@_loss
def gaussian_nll_loss(input: TensorLike, target: TensorLike, var: TensorLike, full: bool = False, eps: float = 1e-6,
                      reduction: str = "mean") -> Tensor:
    """Negative log-likelihood of normal distributions with means `input` and variances `var`.

    A variance below `eps` counts as this, with the gradient of itself; a negative one gives NaN.  `var` may also be a
    number, or of shape (1, batch).  With `full` the constant term is added.

    >>> ag.ops.gaussian_nll_loss([[1.0]], [[3.0]], [[1.0]]).item()
    2.0
    """
    x, t = _pair(input, target)
    own = (given := _wide(input, var)[1]).detach()
    v = where(lt(own, 0.0), float("nan"), ag_clamp(own, _number("eps", eps))) + (given - own)
    losses = (ag_log(v) + square(x - t) / v) * 0.5
    if losses.shape != x.shape:
        raise ShapeError(f"{_ALL}: var is {v.shape} and input is {x.shape}; var must broadcast to this.")
    return _reduced(losses + 0.5 * log(2 * pi) if _flag("full", full) else losses, reduction)


@_loss
def poisson_nll_loss(input: TensorLike, target: TensorLike, log_input: bool = True, full: bool = False,
                     eps: float = 1e-8, reduction: str = "mean") -> Tensor:
    """Negative log-likelihood of counts with Poisson distributions, of which `input` has the logarithm of the mean.

    Without `log_input` it has the mean, to which `eps` is added; `full` adds Stirling's formula for targets above 1.

    >>> ag.ops.poisson_nll_loss([[0.0]], [[3.0]]).item()
    1.0
    """
    x, t = _pair(input, target)
    losses = ag_exp(x) - t * x if _flag("log_input", log_input) else x - t * ag_log(x + _number("eps", eps))
    if _flag("full", full):
        many = gt(t, 1.0)
        n = where(many, t, 1.0)
        losses = losses + where(many, n * ag_log(n) - n + ag_log(n * (2 * pi)) * 0.5, 0.0)
    return _reduced(losses, reduction)


@_loss
def margin_ranking_loss(input1: TensorLike, input2: TensorLike, target: TensorLike, margin: float = 0.0,
                        reduction: str = "mean") -> Tensor:
    """``max(0, margin - target * (input1 - input2))`` for targets of 1 and -1.

    >>> ag.ops.margin_ranking_loss([[1.0]], [[3.0]], [[1.0]]).item()
    2.0
    """
    a, b, t = _pair(input1, input2, target)
    return _reduced(ag_clamp(t * (b - a) + _number("margin", margin), 0.0), reduction)


@_loss
def hinge_embedding_loss(input: TensorLike, target: TensorLike, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """Distances where the target is 1; where it is -1, how much they are below a margin.

    >>> ag.ops.hinge_embedding_loss([[0.5, 0.25]], [[1.0, -1.0]], reduction="none").numpy().tolist()
    [[0.5, 0.75]]
    """
    x, t = _pair(input, target)
    below = ag_clamp(_number("margin", margin) - x, 0.0)
    return _reduced(where(ne(t, -1.0), x, 0.0) + where(ne(t, 1.0), below, 0.0), reduction)


@_loss
def soft_margin_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """``log(1 + exp(-target * input))`` for targets of 1 and -1.

    >>> round(ag.ops.soft_margin_loss([[0.0]], [[1.0]]).item(), 4)
    0.6931
    """
    x, t = _pair(input, target)
    return _reduced(softplus(-(t * x)), reduction)


@_loss
def cosine_embedding_loss(input1: TensorLike, input2: TensorLike, target: TensorLike, margin: float = 0.0,
                          reduction: str = "mean") -> Tensor:
    """``1 - cosine`` of vectors where the target is 1; where it is -1, how much the cosine is above a margin.

    Inputs are of shape (features, ...), the target of shape (...).

    >>> ag.ops.cosine_embedding_loss([[1.0], [0.0]], [[0.0], [1.0]], [1.0]).item()
    1.0
    """
    a, b = _pair(input1, input2)
    if (shape := _shape_of(target)) != a.shape[1:]:
        raise ShapeError(f"{_ALL}: inputs are {a.shape} and target is {shape}; {a.shape[1:]} is required.")
    t = ag_reshape(_wide(input1, parts.as_float(target, input1))[1], *shape)
    of_a, of_b = (ag_sum(square(x), 0) + 1e-12 for x in (a, b))
    cosine = ag_sum(a * b, 0) / ag_sqrt(of_a * of_b)
    above = ag_clamp(cosine - _number("margin", margin), 0.0)
    return _reduced(where(eq(t, 1.0), 1.0 - cosine, 0.0) + where(eq(t, -1.0), above, 0.0), reduction)


@_loss
def triplet_margin_loss(anchor: TensorLike, positive: TensorLike, negative: TensorLike, margin: float = 1.0,
                        p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Tensor:
    """``max(0, margin + distance(anchor, positive) - distance(anchor, negative))``.

    Distances are p-norms of columns.  With `swap` the negative's distance from the positive counts, if it is less.

    >>> round(ag.ops.triplet_margin_loss([[0.0]], [[3.0]], [[1.0]]).item(), 4)
    3.0
    """
    a, near, far = _pair(anchor, positive, negative)
    tiny, away = _number("eps", eps), norm(a - far + _number("eps", eps), p, 0)
    if _flag("swap", swap):
        away = minimum(away, norm(near - far + tiny, p, 0))
    return _reduced(ag_clamp(norm(a - near + tiny, p, 0) - away + _number("margin", margin), 0.0), reduction)
