"""Evaluate and predict: a model's outputs for many samples, and metrics, which say how good outputs are.

A metric is a function ``metric(output, target)`` of a batch that returns the mean over its samples, as a loss does.
Models run in batches, in eval mode and without a tape.  Modes, the default device and the random generator stay as
they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from math import fsum, nan
from typing import Protocol, SupportsFloat

import numpy as np

from ag.autograd.operands import CLASS_RULE, host_values, refuse_outside
from ag.autograd.tape import no_grad
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.device import ag_default_device, ag_device
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import DtypeError, ShapeError
from ag.nn.layer import Model
from ag.nn.mode import ag_eval, modes_kept
from ag.ops.loss import ag_mse_loss, ag_softmax_cross_entropy_loss
from ag.parallel.trainer.samples import input_of, target_of
from ag.training.data import Data

__all__ = ["accuracy", "evaluate", "mean_absolute_error", "mean_squared_error", "predict", "top_k_accuracy"]

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


Loss = Callable[[Tensor, Array], Tensor]  # (output, target) -> the mean over the samples


class Trained(Model, Protocol):
    """A model that computes: a `Layer`, or any object with ``forward(x)`` and ``parameters()``."""

    @property
    def forward(self) -> Callable[..., Tensor]:
        """The output for an input with samples on the last axis."""


def evaluate(model: Trained, data: object, loss: Loss | None = None, metrics: object = None, *,
             batch_size: int | None = None) -> dict[str, float]:
    """Return loss and metrics of a model, averaged over samples, in eval mode.

    Reference: Keras ``Model.evaluate``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    data : pair of arrays, ag_dataloader, ag_image_folder or dataset
        As in `fit`, like `loss` and `metrics`; also samples that a loader would drop, in their first order.
    loss : callable, optional
    metrics : list of str and callable, or dict of str to callable, optional
    batch_size : int, optional
        Samples that are passed at once; default: the loader's, or 32.

    Returns
    -------
    dict of str to float
        With ``loss``, and each metric under its name.

    Examples
    --------
    >>> import ag, numpy as np
    >>> model = ag.ag_linear(2, 2)
    >>> found = ag.training.evaluate(model, (np.ones((5, 2)), np.zeros(5, int)), metrics=["accuracy"])
    >>> list(found)
    ['loss', 'accuracy']
    """
    check_model("evaluate", model)
    check_batch_size("evaluate", batch_size)
    found = named_metrics("evaluate", metrics)
    with closing(Data(data, "evaluate: data", batch_size, whole=True)) as samples:
        return means_of("evaluate", model, samples, loss_for("evaluate", loss, samples), found)


def predict(model: Trained, x: object, *, batch_size: int | None = None) -> Array:
    """Return the outputs of a model, in eval mode, with the samples on the first axis.

    Reference: Keras ``Model.predict``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    x : array_like of shape (samples, ...), ag_dataloader or dataset
        Inputs; targets of a loader or a dataset are not used.
    batch_size : int, optional
        Samples that are passed at once; default: the loader's, or 32.

    Returns
    -------
    ndarray of shape (samples, ...)
        Of a model whose output is (features, batch), (samples, features).

    Raises
    ------
    ShapeError
        If an output does not have the samples on its last axis.

    Examples
    --------
    >>> import ag, numpy as np
    >>> ag.training.predict(ag.ag_linear(3, 2), np.ones((5, 3))).shape
    (5, 2)
    """
    check_model("predict", model)
    check_batch_size("predict", batch_size)
    with closing(Data(x, "predict: x", batch_size, whole=True)) as samples:
        return np.concatenate([_samples_first(output, count) for output, _, count in _outputs(model, samples)])


def _samples_first(output: object, count: int) -> Array:
    """Return an output as an array with its samples on the first axis."""
    if not isinstance(output, Tensor):
        raise TypeError(f"predict: the model returned a {type(output).__name__}; a tensor with the samples on the last "
                        f"axis is required.")
    if output.ndim == 0 or output.shape[-1] != count:
        raise ShapeError(f"predict: the model made {output.shape} of {count} samples; they must be on the last axis, "
                         f"as in (features, batch). Let forward(x) return them so, or call it yourself.")
    return np.moveaxis(output.numpy(), -1, 0)


def means_of(function: str, model: Trained, data: Data, loss: Loss, metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return loss and metrics over all samples; waits for the device."""
    means = {name: Mean() for name in ("loss", *metrics)}
    for output, target, count in _outputs(model, data):
        means["loss"].add(float(loss(output, target).item()), count)
        for name, metric in metrics.items():
            means[name].add(_number(function, name, metric(output, target)), count)
    return {name: mean.value for name, mean in means.items()}


def _outputs(model: Trained, data: Data) -> Iterator[tuple[Tensor, Array, int]]:
    """Yield output, target and number of samples of every batch."""
    with modes_kept(model), no_grad(), ag_device(device_of(model)):
        ag_eval(model)
        for leaf in data.batches():
            yield model.forward(input_of(leaf)), target_of(leaf), leaf.x.shape[-1]


def device_of(model: Model) -> str:
    """Return the device of a model's first parameter; the default one if it has none."""
    return next((p.device for p in model.parameters().values()), ag_default_device())


def loss_for(function: str, given: Loss | None, data: Data) -> Loss:
    """Return the user's loss, or the usual one for the kind of targets."""
    if given is not None:
        if not callable(given):
            raise TypeError(f"{function}: loss is {given!r:.60}; a function of output and target is required, such as "
                            f"ag.ops.mse_loss, or None.")
        return given
    kind = data.kind_of_targets()
    if kind == "numbers":
        return ag_mse_loss

    def cross_entropy(output: TensorLike, target: TensorLike) -> Tensor:
        if kind == "ids" and np.shape(target) == np.shape(output):
            raise ValueError(f"{function}: targets are whole numbers in the shape of the outputs, {np.shape(output)}, "
                             f"but no distributions, which are at least 0 and add up to 1; give loss, such as "
                             f"ag.ops.mse_loss for numbers, or make them class ids.")
        return ag_softmax_cross_entropy_loss(output, target)

    return cross_entropy


def _number(function: str, name: str, value: object) -> float:
    single = value.reshape(()) if isinstance(value, np.ndarray) and value.size == 1 else value
    try:
        if isinstance(single, SupportsFloat):  # tensors, and numbers of all kinds
            return float(single)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{function}: the metric {name} returned {value!r:.60}; one number is required.")


def check_model(function: str, model: object) -> None:
    """Refuse an object that is no model."""
    made = not isinstance(model, type)
    if not made or not all(callable(getattr(model, name, None)) for name in ("forward", "parameters")):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise TypeError(f"{function}: model is {what}; an object with forward(x) and parameters() is required, such as "
                        f"ag.nn.Sequential(ag.nn.Linear(4, 3)).")


def check_batch_size(function: str, given: object) -> None:
    """Refuse a batch size that is none."""
    if not (given is None or counts(given)):
        raise ValueError(f"{function}: batch_size is {given!r}; a whole number of at least 1 is required.")
