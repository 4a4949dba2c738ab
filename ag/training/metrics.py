"""Metrics: numbers that say how good outputs are, averaged over samples.

A metric is any function ``metric(output, target)`` of a batch that returns one number, the mean over its samples; a
loss is one, too.  Samples are on the last axis, as everywhere below the edge of `ag.training`:

    output of 3 classes, 4 samples    [[0.1 0.9 0.2 0.3]       ids    [2 0 2 0]
                                       [0.2 0.0 0.1 0.4]       accuracy: 2 0 2 1 are largest, 3 of 4 are right, 0.75
                                       [0.7 0.1 0.7 0.3]]

`Mean` averages over batches of any sizes: each counts as often as it has samples.  Knows arrays and numbers; no model
and no loop.  `ag.training.measuring` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum, nan

import numpy as np

from ag.autograd.create import host_values
from ag.autograd.tensor import ArrayLike, Tensor
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import DtypeError, ShapeError
from ag.ops.class_ids import CLASS_RULE, refuse_outside

__all__ = ["METRICS", "Mean", "Metric", "accuracy", "mean_absolute_error", "mean_squared_error", "named_metrics",
           "top_k_accuracy"]

Metric = Callable[[Tensor, Array], object]  # (output, target of the loss) -> one number


class Mean:
    """The mean of numbers that count differently often.

    Examples
    --------
    >>> from ag.training.metrics import Mean
    >>> mean = Mean()
    >>> mean.add(0.5, 4)
    >>> mean.add(1.0, 1)
    >>> mean.value
    0.6
    """

    def __init__(self) -> None:
        self._parts: list[float] = []
        self.count = 0

    def add(self, value: float, count: int) -> None:
        """Note the mean of `count` samples."""
        self._parts.append(value * count)
        self.count += count

    @property
    def value(self) -> float:
        """The mean of all samples so far; NaN if there are none."""
        if not self.count:
            return nan
        try:
            return fsum(self._parts) / self.count
        except OverflowError:  # of the sum, not of the mean
            return fsum(part / self.count for part in self._parts)
        except ValueError:  # inf and -inf
            return nan


# ---------------------------------------------------------------------------------------------- metrics


def accuracy(output: ArrayLike, target: ArrayLike) -> float:
    """Which part of the samples has its largest output at the class of the target.

    Parameters
    ----------
    output : Tensor or array_like of shape (classes, ...)
        Logits or probabilities.
    target : Tensor or array_like of shape (...) or of shape (classes, ...)
        0-based class ids, or distributions, whose largest entry counts.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    ShapeError
        If the shapes do not fit, or there is one class only.
    IndexError
        If an id is outside ``0..classes-1``.
    DtypeError
        If targets are no numbers.

    Notes
    -----
    A sample with a NaN among its outputs is not right, whatever its class.

    Examples
    --------
    >>> from ag.training import accuracy
    >>> accuracy([[0.1, 0.9], [0.8, 0.3]], [1, 1])
    0.5
    """
    values, ids = _classes("accuracy", output, target)
    return _mean(values.argmax(0) == ids)


def top_k_accuracy(k: int) -> Metric:
    """Make a metric: which part of the samples has the class of the target among its `k` largest outputs.

    Parameters
    ----------
    k : int
        At least 1.

    Returns
    -------
    callable
        The metric, called ``top_5_accuracy`` for ``k=5``; of equal outputs, those of lower classes are larger.  It
        refuses what `accuracy` refuses, and a sample with a NaN among its outputs is not right.

    Raises
    ------
    ValueError
        If `k` is no whole number of at least 1.

    Examples
    --------
    >>> from ag.training import top_k_accuracy
    >>> top_k_accuracy(2)([[0.1, 0.9], [0.2, 0.8], [0.7, 0.0]], [1, 2])
    0.5
    """
    if not counts(k):
        raise ValueError(f"top_k_accuracy: k is {k!r}; a whole number of at least 1 is required.")

    def metric(output: ArrayLike, target: ArrayLike) -> float:
        values, ids = _classes(metric.__name__, output, target)
        best = np.argsort(-values, axis=0, kind="stable")[: int(k)]
        return _mean((best == ids).any(0))

    metric.__name__ = f"top_{int(k)}_accuracy"
    return metric


def mean_absolute_error(output: ArrayLike, target: ArrayLike) -> float:
    """The mean of the absolute differences.

    Parameters
    ----------
    output : Tensor or array_like
    target : Tensor or array_like of the same shape

    Returns
    -------
    float

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> from ag.training import mean_absolute_error
    >>> mean_absolute_error([[1.0, 2.0]], [[1.0, 4.0]])
    1.0
    """
    with np.errstate(all="ignore"):
        return _mean(np.abs(_difference("mean_absolute_error", output, target)))


def mean_squared_error(output: ArrayLike, target: ArrayLike) -> float:
    """The mean of the squared differences.

    Parameters
    ----------
    output : Tensor or array_like
    target : Tensor or array_like of the same shape

    Returns
    -------
    float

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> from ag.training import mean_squared_error
    >>> mean_squared_error([[1.0, 2.0]], [[1.0, 4.0]])
    2.0
    """
    with np.errstate(all="ignore"):
        return _mean(np.square(_difference("mean_squared_error", output, target)))


METRICS: Mapping[str, Metric] = {  # those that have names
    "accuracy": accuracy, "mean_absolute_error": mean_absolute_error, "mean_squared_error": mean_squared_error,
}


def _classes(function: str, output: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    """Outputs, and the class of every sample, -1 for those whose outputs are not all numbers."""
    values, ids = host_values(output, function), host_values(target, function)
    if ids.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: the target is of type {ids.dtype}; class ids are required, or distributions.")
    if values.ndim == 0 or values.shape[0] < 2:
        raise ShapeError(f"{function}: output is {values.shape}; (classes, samples) with at least two classes is "
                         f"required.")
    if ids.shape == values.shape:
        ids = ids.argmax(0)
    if ids.shape != values.shape[1:]:
        raise ShapeError(f"{function}: output is {values.shape} and target is {ids.shape}; the target must be "
                         f"{values.shape[1:]} (class ids) or {values.shape} (distributions).")
    refuse_outside(function, len(values), "label", CLASS_RULE, ids)
    return values, np.where(np.isnan(values).any(0), -1, ids)


def _mean(values: Array) -> float:
    """The mean of an array, NaN of an empty one, without warnings."""
    return float(np.mean(values)) if values.size else nan


def _difference(function: str, output: ArrayLike, target: ArrayLike) -> Array:
    values, wanted = host_values(output, function).astype(np.float64), host_values(target, function)
    if values.shape != wanted.shape:
        raise ShapeError(f"{function}: output is {values.shape} and target is {wanted.shape}; the shapes must be "
                         f"equal.")
    return np.asarray(values - wanted)


# ---------------------------------------------------------------------------------------------- what users give


def named_metrics(function: str, given: object) -> dict[str, Metric]:
    """The metrics that a user gives as names, functions or a dict, by their names.

    Raises
    ------
    TypeError
        If one is neither a name nor a function.
    ValueError
        If there is no metric of a name, a function has none, or two have one.
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif given is None or isinstance(given, (str, Sequence)) or callable(given):
        listed = [] if given is None else [*given] if isinstance(given, Sequence) and not isinstance(given, str) else [
            given]
        pairs = [(one if isinstance(one, str) else getattr(one, "__name__", None), one) for one in listed]
    else:
        raise TypeError(f"{function}: metrics is a {type(given).__name__}; a list of names and functions is required, "
                        f"or a dict of functions.")
    found: dict[str, Metric] = {}
    for name, one in pairs:
        metric = METRICS.get(one) if isinstance(one, str) else one
        if metric is None:
            raise ValueError(f"{function}: there is no metric {one!r}; use {', '.join(METRICS)}, or a function of "
                             f"output and target.")
        if not callable(metric):
            raise TypeError(f"{function}: the metric {one!r:.60} is a {type(one).__name__}; a name or a function of "
                            f"output and target is required.")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{function}: a metric is called {name!r}; give a dict, such as "
                             f"{{'error': lambda output, target: ...}}.")
        if name in found or name in ("loss", "epoch", "lr"):
            raise ValueError(f"{function}: a second {name!r} is among the metrics; give each a name of its own, in a "
                             f"dict.")
        found[name] = metric
    return found
