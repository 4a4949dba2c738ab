"""Metrics: functions ``metric(output, target)`` of a batch that return the mean over its samples, as a loss does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import Parameter, signature
from math import fsum, nan
from typing import SupportsFloat, TypeGuard

import numpy as np

from ag.autograd.operands import CLASS_RULE, host_values, refuse_outside
from ag.autograd.tensor import ArrayLike, Tensor
from ag.engine.primitive import Array
from ag.engine.registry import say_once
from ag.engine.shape import counts
from ag.errors import DtypeError, ShapeError
from ag.version import install_line

__all__ = ["EpochMetric", "accuracy", "mean_absolute_error", "mean_squared_error", "top_k_accuracy"]

Metric = Callable[..., object]  # (output, target of the loss) -> one number
_MANY = 10  # logits, of which some are likely outside of 0 to 1


class Mean:
    """The mean of numbers that count differently often; NaN of none."""

    def __init__(self) -> None:
        self._parts: list[float] = []
        self.count: float = 0  # of samples, or what they count

    def add(self, value: float, count: float) -> None:
        """Add the mean of `count` samples."""
        count = count if isinstance(count, int) else float(count)  # not numpy's, which is written np.float64(...)
        self._parts.append(value * count)
        self.count += count

    @property
    def value(self) -> float:
        try:
            return fsum(part / self.count for part in self._parts) if max(map(abs, self._parts)) > 1e300 else (
                fsum(self._parts) / self.count)
        except (ValueError, OverflowError, ZeroDivisionError):  # none, inf and -inf, or NaN
            return nan


def accuracy(output: ArrayLike, target: ArrayLike) -> float:
    """Return the share of the samples, from 0 to 1, that have their largest output at the class of the target.

    A sample with NaN among its outputs is not right; ids outside ``0..classes-1`` are an IndexError.

    Parameters
    ----------
    output : Tensor or array_like of shape (classes, ...)
        Logits or probabilities.  One output per sample is a logit, above 0 for class 1, whatever the others are: of
        probabilities ``p`` give both classes, ``np.concatenate([1 - p, p])``.
    target : Tensor or array_like of shape (...) or of shape (classes, ...)
        0-based class ids, or distributions, whose largest entry counts.

    Examples
    --------
    >>> from ag.training import accuracy
    >>> accuracy([[0.1, 0.9], [0.8, 0.3]], [1, 1])
    0.5
    """
    values, ids = classes_of("accuracy", output, target, least=1)
    return _mean(class_ids(values) == ids)


vars(accuracy)["of_classes"] = True  # as of `EpochMetric`


def top_k_accuracy(k: int) -> Metric:
    """Make a metric: the share of the samples that have the class of the target among their `k` largest outputs.

    It is called ``top_5_accuracy`` for ``k=5``.  Of equal outputs, those of lower classes count as larger.

    Examples
    --------
    >>> from ag.training import top_k_accuracy
    >>> top_k_accuracy(2)([[0.1, 0.9], [0.2, 0.8], [0.7, 0.0]], [1, 2])
    0.5
    """
    if not counts(k):
        raise ValueError(f"top_k_accuracy: k is {k!r}; a whole number of at least 1 is required.")

    def metric(output: ArrayLike, target: ArrayLike) -> float:
        values, ids = classes_of(metric.__name__, output, target)
        best = np.argsort(-values, axis=0, kind="stable")[: int(k)]
        return _mean((best == ids).any(0))

    metric.__name__ = f"top_{int(k)}_accuracy"
    return metric


def mean_absolute_error(output: ArrayLike, target: ArrayLike) -> float:
    """Return the mean of the absolute differences of two arrays of one shape.

    Examples
    --------
    >>> from ag.training import mean_absolute_error
    >>> mean_absolute_error([[1.0, 2.0]], [[1.0, 4.0]])
    1.0
    """
    return _mean(np.abs(_difference("mean_absolute_error", output, target)))


def mean_squared_error(output: ArrayLike, target: ArrayLike) -> float:
    """Return the mean of the squared differences of two arrays of one shape.

    Examples
    --------
    >>> from ag.training import mean_squared_error
    >>> mean_squared_error([[1.0, 2.0]], [[1.0, 4.0]])
    2.0
    """
    with np.errstate(all="ignore"):
        return _mean(np.square(_difference("mean_squared_error", output, target)))


def _array(function: str, name: str, given: ArrayLike) -> Array:
    try:
        array = host_values(given, function)
    except ValueError as error:
        raise ShapeError(f"{function}: the {name} is a {type(given).__name__} and no array; rows of one length are "
                         f"required.") from error
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: the {name} is of type {array.dtype}; numbers are required.")
    return array


def classes_of(function: str, output: ArrayLike, target: ArrayLike, least: int = 2) -> tuple[Array, Array]:
    """Return outputs, and every sample's class, -1 for those with a NaN."""
    values, ids = _array(function, "output", output), _array(function, "target", target)
    if values.ndim == 0 or values.shape[0] < least:
        raise ShapeError(f"{function}: output is {values.shape}; (classes, samples) with at least "
                         f"{'two classes' if least > 1 else 'one output'} is required.")
    if ids.shape == values.shape:
        if len(values) > 1 and np.isin(ids, (0, 1)).all() and (ids.sum(0) != 1).any():
            raise ValueError(f"{function}: the target has samples of several classes or of none; one class for each is "
                             f"required. Write a metric of your own for several.")
        ids = ids.argmax(0) if len(values) > 1 else ids[0]
    if ids.shape != values.shape[1:]:
        raise ShapeError(f"{function}: output is {values.shape} and target is {ids.shape}; the target must be "
                         f"{values.shape[1:]} (class ids) or {values.shape} (distributions).")
    refuse_outside(function, max(2, len(values)), "label", CLASS_RULE, ids)
    return values, np.where(np.isnan(values).any(0), -1, ids)


def class_ids(values: Array) -> Array:
    """Return the class of each sample, of outputs with the classes on the first axis."""
    return np.asarray(_of_each_class(values).argmax(0))


def _of_each_class(values: Array) -> Array:
    """Return an output for each class, of one logit those of 0 and 1; log once if that seems not to be meant."""
    if len(values) > 1:
        return values
    if values.size >= _MANY and ((values >= 0) & (values <= 1)).all():
        say_once("metrics: one output per sample is a logit, of class 1 above 0, and all are from 0 to 1. If they are "
                 "probabilities, let the model end without sigmoid, or give both, np.concatenate([1 - p, p]).")
    return np.concatenate([np.zeros_like(values), values])


def _are_probabilities(values: Array) -> bool:
    """Return whether outputs of several classes are from 0 to 1, and add up to 1."""
    return bool(((values >= 0) & (values <= 1)).all() and (abs(values.sum(0) - 1) < 0.01).all())


def probabilities(values: Array) -> Array:
    """Return the probabilities of two classes or more, of outputs that are logits or probabilities, in float64."""
    logits = _of_each_class(values.astype(np.float64))
    with np.errstate(all="ignore"):
        powers = values if len(values) > 1 and _are_probabilities(values) else np.exp(logits - logits.max(0))
        return np.asarray(powers / powers.sum(0))


def _mean(values: Array) -> float:
    return float(np.mean(values)) if values.size else nan


def _difference(function: str, output: ArrayLike, target: ArrayLike) -> Array:
    values, wanted = _array(function, "output", output).astype(np.float64), _array(function, "target", target)
    if values.shape != wanted.shape:
        raise ShapeError(f"{function}: output is {values.shape} and target is {wanted.shape}; give equal shapes.")
    with np.errstate(all="ignore"):
        return np.asarray(values - wanted)


class EpochMetric:
    """A metric of all samples at once, such as F1, which is no mean over batches.

    Reference: PyTorch-Ignite ``EpochMetric``.

    Parameters
    ----------
    function : callable
        ``function(output, target)`` returns one number for arrays with all samples on the last axis, kept in memory.

    Examples
    --------
    >>> import ag, numpy as np
    >>> median = ag.training.EpochMetric(lambda output, target: np.median(abs(output - target)))
    >>> float(median(np.ones((1, 5)), np.zeros((1, 5))))
    1.0
    """

    of_classes = False  # whether it takes outputs for scores of classes

    def __init__(self, function: Metric) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "metric")

    def __call__(self, output: Array, target: Array) -> object:
        return self.function(output, target)


METRICS: Mapping[str, Metric] = {
    "accuracy": accuracy, "mean_absolute_error": mean_absolute_error, "mean_squared_error": mean_squared_error,
}
_ALIASES = {"acc": "accuracy", "mae": "mean_absolute_error", "mse": "mean_squared_error", "auc": "roc_auc",
            "rmse": "root_mean_squared_error"}
# scikit-learn's convention for names
_LESS = re.compile(r"(?!neg_).*(loss|error|deviance|distance|mae|mse)$")
_MORE = re.compile(r"neg_|f1|precision|recall|jaccard|average_precision|roc_auc|r2|explained_variance|positive_like|"
                   r".*(acc|accuracy|auc|score|corrcoef)$")
_SCORES = {"y_score", "y_proba", "y_prob", "pred_decision"}  # how arguments are called that are no labels


def more_is_better(name: str) -> bool | None:
    """Return whether more is better for a metric or column of that name; None if the name does not tell."""
    name = name.removeprefix("val_")
    return False if _LESS.match(name) else True if _MORE.match(name) else None


def _called(function: str, name: str) -> Metric:
    own = _ALIASES.get(name, name)
    if own in METRICS:
        return METRICS[own]
    if found := re.fullmatch(r"top_([1-9]\d*)_accuracy", own):
        return top_k_accuracy(int(found[1]))
    there = f"use {', '.join(METRICS)}, top_5_accuracy, or a function of output and target"
    try:
        from sklearn import metrics as known
    except ImportError as error:
        raise ImportError(f"{function}: there is no metric {name!r} without scikit-learn; run "
                          f"`{install_line('sklearn')}` for its metrics, or {there}.") from error
    if own in known.get_scorer_names():
        return _Sklearn(known.get_scorer(own))
    score = getattr(known, own, None) if re.fullmatch(r"\w+_(score|error|loss|deviance|corrcoef)", own) else None
    needed = [] if score is None else [p for p in signature(score).parameters.values() if p.default is Parameter.empty]
    if score is None or needed[0].name not in ("y_true", "labels_true", "y1"):
        raise ValueError(f"{function}: there is no metric {name!r}; {there}, or a name of sklearn.metrics, such as "
                         f"'f1_macro' or 'log_loss'.")
    if len(needed) > 2:
        raise ValueError(f"{function}: the metric {name!r} needs {needed[2].name}; give it in a dict, such as "
                         f"{{{name!r}: functools.partial(sklearn.metrics.{own}, {needed[2].name}=...)}}.")
    return _Sklearn(score)


def _is_sklearns(given: object) -> TypeGuard[Callable[..., float]]:
    inner = given.func if isinstance(given, partial) else given
    return callable(inner) and (getattr(inner, "__module__", None) or "").startswith("sklearn.metrics")


class _Sklearn(EpochMetric):
    """A function of ``sklearn.metrics``, or a scorer, which has one with options and a sign."""

    def __init__(self, given: Callable[..., float]) -> None:
        inner = given.func if isinstance(given, partial) else given
        self._score: Callable[..., float] = getattr(inner, "_score_func", inner)
        self._options = {**getattr(inner, "_kwargs", {}), **(given.keywords if isinstance(given, partial) else {})}
        self._sign: int = getattr(inner, "_sign", 1)
        self._arguments = signature(self._score).parameters
        self.of_classes = not self._score.__module__.endswith("_regression")
        super().__init__(self._score)

    def __call__(self, output: Array, target: Array) -> object:
        """Call the function with what it takes: numbers, labels, probabilities or logits."""
        name, options = self.__name__, dict(self._options)
        if np.isnan(output).any():
            return nan
        if not self.of_classes:
            wanted = np.reshape(target, output.shape) if np.size(target) == output.size else target
            _difference(name, output, wanted)  # refuses other shapes
            return self._of([x.reshape(-1, x.shape[-1]).T.astype(np.float64) for x in (wanted, output)], options)
        output = np.atleast_2d(output)
        if target.shape == output.shape and len(output) > 1 and not _are_probabilities(target):
            raise ValueError(f"{name}: targets are neither class ids nor distributions, which add up to 1; give a "
                             f"function of your own for several labels per sample.")
        values, ids = classes_of(name, output, target, least=1)
        flat, ids = values.reshape(len(values), -1), ids.ravel().astype(int)
        several, argument = len(values) > 2, [*self._arguments][1]
        if several and options.get("average", getattr(self._arguments.get("average"), "default", "")) == "binary":
            options["average"] = "macro"
        if argument not in _SCORES and name not in ("log_loss", "d2_log_loss_score"):
            return self._of([ids, class_ids(flat)], options)
        if argument == "pred_decision":
            flat = flat.astype(np.float64)
            scores = flat.T if several else flat[-1] - (flat[0] if len(flat) > 1 else 0)
        else:
            scores = probabilities(flat).T if several else probabilities(flat)[1]
        if np.isnan(scores).any():  # of infinite logits
            return nan
        if "labels" in self._arguments:
            options.setdefault("labels", np.arange(max(2, len(values))))
        if several and "multi_class" in self._arguments and options.get("multi_class", "raise") == "raise":
            options["multi_class"] = "ovr"
        return self._of([ids, scores], options)

    def _of(self, arrays: list[Array], options: Mapping[str, object]) -> object:
        try:
            return self._sign * self._score(*arrays, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.__name__} of scikit-learn: {error}") from error


class _Output(Array):
    """An output that metrics get: an array, with the method that a tensor has for it."""

    def numpy(self) -> Array:
        return self.view(np.ndarray)


def on_host(output: object) -> object:
    return output.numpy().view(_Output) if isinstance(output, Tensor) else output


def named_metrics(function: str, given: object) -> dict[str, Metric]:
    """Return the metrics of a user's names, functions or dict, by their names."""
    if not (given is None or isinstance(given, (Mapping, Sequence)) or callable(given)):
        raise TypeError(f"{function}: metrics is a {type(given).__name__}; a list of names and functions is required, "
                        f"or a dict of functions.")
    listed = [given] if isinstance(given, str) or callable(given) else given or ()
    found: dict[str, Metric] = {}
    for name, one in listed.items() if isinstance(listed, Mapping) else (
            (one if isinstance(one, str) else getattr(one, "__name__", None), one) for one in listed):
        one = one.function if type(one) is EpochMetric and _is_sklearns(one.function) else one
        metric = _called(function, one) if isinstance(one, str) else _Sklearn(one) if _is_sklearns(one) else one
        if not callable(metric):
            raise TypeError(f"{function}: the metric {one!r:.60} is a {type(one).__name__}; give a name or a function.")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{function}: a metric is called {name!r}; give a dict, such as "
                             f"{{'error': lambda output, target: ...}}.")
        if name in found or name in ("loss", "epoch", "lr"):
            raise ValueError(f"{function}: a second {name!r} is among the metrics; give each its own name, in a dict.")
        found[name] = metric
    return found


def number_of(function: str, name: str, value: object) -> float:
    single = value.reshape(()) if isinstance(value, np.ndarray) and value.size == 1 else value
    with suppress(TypeError, ValueError):
        if isinstance(single, SupportsFloat):  # tensors, and numbers of all kinds
            return float(single)
    raise TypeError(f"{function}: the metric {name} returned {value!r:.60}; one number is required.")


