"""Metrics: numbers that say how good outputs are, averaged over samples.

A metric is a function ``metric(output, target)`` of a batch that returns the mean over its samples, as a loss does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum, nan

import numpy as np

from ag.autograd.operands import CLASS_RULE, host_values, refuse_outside
from ag.autograd.tensor import ArrayLike, Tensor
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import DtypeError, ShapeError

Metric = Callable[[Tensor, Array], object]  # (output, target of the loss) -> one number


class Mean:
    """The mean of numbers that count differently often: 4 times 0.5 and once 1.0 are 0.6."""

    def __init__(self) -> None:
        self._parts: list[float] = []
        self.count = 0

    def add(self, value: float, count: int) -> None:
        """Add the mean of `count` samples."""
        self._parts.append(value * count)
        self.count += count

    @property
    def value(self) -> float:
        """Return the mean of all samples so far; NaN if there are none."""
        if not self.count:
            return nan
        try:
            return fsum(part / self.count for part in self._parts) if max(map(abs, self._parts)) > 1e300 else (
                fsum(self._parts) / self.count)
        except (ValueError, OverflowError):  # inf and -inf, or NaN
            return nan


# ---------------------------------------------------------------------------------------------- metrics


def accuracy(output: ArrayLike, target: ArrayLike) -> float:
    """Return the share of the samples that have their largest output at the class of the target.

    Parameters
    ----------
    output : Tensor or array_like of shape (classes, ...)
        Logits or probabilities.
    target : Tensor or array_like of shape (...) or of shape (classes, ...)
        0-based class ids, or distributions, whose largest entry counts.

    Returns
    -------
    float
        From 0 to 1.  A sample with a NaN among its outputs is not right.

    Raises
    ------
    IndexError
        If an id is outside ``0..classes-1``.

    Examples
    --------
    >>> from ag.training import accuracy
    >>> accuracy([[0.1, 0.9], [0.8, 0.3]], [1, 1])
    0.5
    """
    values, ids = _classes("accuracy", output, target)
    return _mean(values.argmax(0) == ids)


def top_k_accuracy(k: int) -> Metric:
    """Make a metric: the share of the samples that have the class of the target among their `k` largest outputs.

    Parameters
    ----------
    k : int
        At least 1.

    Returns
    -------
    callable
        The metric, called ``top_5_accuracy`` for ``k=5``; of equal outputs, those of lower classes are larger.

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
    """Return the mean of the absolute differences of two arrays of one shape.

    Examples
    --------
    >>> from ag.training import mean_absolute_error
    >>> mean_absolute_error([[1.0, 2.0]], [[1.0, 4.0]])
    1.0
    """
    with np.errstate(all="ignore"):
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


METRICS: Mapping[str, Metric] = {  # those that have names
    "accuracy": accuracy, "mean_absolute_error": mean_absolute_error, "mean_squared_error": mean_squared_error,
}


def _array(function: str, name: str, given: ArrayLike) -> Array:
    try:
        array = host_values(given, function)
    except ValueError as error:
        raise ShapeError(f"{function}: the {name} is a {type(given).__name__} and no array; rows of one length are "
                         f"required.") from error
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: the {name} is of type {array.dtype}; numbers are required.")
    return array


def _classes(function: str, output: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    """Return outputs, and every sample's class, -1 for those with a NaN."""
    values, ids = _array(function, "output", output), _array(function, "target", target)
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
    """Return the mean of an array, NaN of an empty one, without warnings."""
    return float(np.mean(values)) if values.size else nan


def _difference(function: str, output: ArrayLike, target: ArrayLike) -> Array:
    values, wanted = _array(function, "output", output).astype(np.float64), _array(function, "target", target)
    if values.shape != wanted.shape:
        raise ShapeError(f"{function}: output is {values.shape} and target is {wanted.shape}; the shapes must be "
                         f"equal.")
    return np.asarray(values - wanted)


# ---------------------------------------------------------------------------------------------- what users give


def named_metrics(function: str, given: object) -> dict[str, Metric]:
    """Return the metrics of a user's names, functions or dict, by their names."""
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
