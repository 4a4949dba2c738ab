"""Evaluate and predict: outputs of a model in eval mode for many samples in batches, and how good they are.

Modes, the default device and the random generator stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from typing import Any, Protocol, cast

import numpy as np

from ag.autograd.tape import no_grad
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.device import ag_default_device, ag_device
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import ShapeError
from ag.nn.layer import Model
from ag.nn.mode import ag_eval, modes_kept
from ag.ops.loss import ag_bce_with_logits_loss, ag_mse_loss, ag_softmax_cross_entropy_loss, refuse_beyond
from ag.parallel.trainer.host_optimizer import LOSSES, named
from ag.parallel.trainer.samples import Shard, Weighted, input_of, refuse_unweighted, target_of, why_not_stacked
from ag.training.data import Data
from ag.training.metrics import (
    EpochMetric,
    Mean,
    Metric,
    class_ids,
    classes_of,
    named_metrics,
    number_of,
    on_host,
    refuse_nan,
)

__all__ = ["confusion_matrix", "evaluate", "predict"]

Loss = Callable[..., Tensor]  # (output, target) -> the mean over the samples


class Trained(Model, Protocol):
    """A model that computes: a `Layer`, or any object with ``forward(x)`` and ``parameters()``."""

    @property
    def forward(self) -> Callable[..., Tensor]:
        """The output for an input with samples on the last axis."""


def evaluate(model: Trained, data: object, loss: Loss | str | None = None, metrics: object = None, *,
             batch_size: int | None = None) -> dict[str, float]:
    """Return loss and metrics of a model over all samples, in eval mode.

    Reference: Keras ``Model.evaluate``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    data : pair of arrays, ag_dataloader, ag_image_folder or dataset
        Like all arguments as in `fit`; also samples that a loader would drop, in their first order.  A triple
        ``(X, y, sample_weight)`` is for a weighted loss.
    loss, metrics, batch_size : optional

    Returns
    -------
    dict of str to float
        With ``loss``, and each metric under its name.

    Examples
    --------
    >>> import ag, numpy as np
    >>> list(ag.training.evaluate(ag.ag_linear(2, 2), (np.ones((5, 2)), np.zeros(5, int)), metrics=["accuracy"]))
    ['loss', 'accuracy']
    """
    found = named_metrics("evaluate", metrics)
    with _samples("evaluate: data", model, data, batch_size) as samples:
        return means_of("evaluate", model, samples, loss_for("evaluate", loss, samples), found)


def predict(model: Trained, x: object, *, labels: bool | Sequence[object] = False,
            batch_size: int | None = None) -> Array:
    """Return the outputs of a model, or the classes that it finds, with the samples on the first axis.

    Reference: Keras ``Model.predict``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    x : array_like of shape (samples, ...), ag_dataloader or dataset
        Inputs; targets of a loader or a dataset are not used.
    labels, batch_size : optional
        True: return class ids, as `accuracy` finds them: one output is a logit.  A name for each class: return names.

    Returns
    -------
    ndarray of shape (samples, ...)
        Of a model whose output is (features, batch), (samples, features), or (samples,) with `labels`.

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
    with _samples("predict: x", model, x, batch_size) as samples:
        found = np.concatenate([_samples_first(output, count) for output, _, count, *_ in _outputs(model, samples)])
    if isinstance(labels, (bool, np.bool_)) and not labels:
        return found
    if found.ndim < 2:
        raise ShapeError(f"predict: the model made one number of each sample, {found.shape}; (classes, batch) is "
                         f"required for labels.")
    refuse_nan("predict", np.isnan(found).reshape(len(found), -1).any(1))
    ids = np.moveaxis(class_ids(np.moveaxis(found, 0, -1)), -1, 0)
    if isinstance(labels, (bool, np.bool_)):
        return ids
    return np.asarray(_named("predict", labels, max(2, found.shape[1])))[ids]


def confusion_matrix(model: Trained | ArrayLike, data: object, *, labels: Sequence[object] | None = None,
                     plot: bool = False, batch_size: int | None = None) -> Array:
    """Count how many samples of each class a model takes for each class.

    Reference: scikit-learn ``confusion_matrix``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``, or array_like
        Or the outputs themselves, of shape (classes, samples); one per sample is a logit.
    data : pair of arrays, ag_dataloader, ag_image_folder or dataset, or array_like
        As in `evaluate`; of outputs, the targets of the shape (samples,).
    labels, plot, batch_size : optional
        With ``plot=True`` also draw a picture, into a new figure of pyplot, with the names of the classes in `labels`.

    Returns
    -------
    ndarray of shape (classes, classes)
        Rows are true classes, columns those found.  NaN among outputs is a ValueError.

    Examples
    --------
    >>> import ag
    >>> ag.training.confusion_matrix([[0.1, 0.9, 0.7], [0.8, 0.3, 0.2]], [1, 1, 0]).tolist()
    [[1, 0], [1, 1]]
    """
    output, target = model, data
    if not isinstance(model, (Tensor, np.ndarray, list, tuple)):
        with _samples("confusion_matrix: data", cast(Trained, model), data, batch_size) as samples:
            output, target = _joined("confusion_matrix", [
                (on_host(output), target) for output, target, *_ in _outputs(cast(Trained, model), samples)])
    values, ids = classes_of("confusion_matrix", cast(ArrayLike, output), target, least=1)
    refuse_nan("confusion_matrix", ids < 0)
    matrix = np.zeros([max(2, len(values))] * 2, int)
    np.add.at(matrix, (ids.astype(int), class_ids(values)), 1)
    names = _named("confusion_matrix", range(len(matrix)) if labels is None else labels, len(matrix))
    if plot:
        _draw(matrix, names)
    return matrix


def pyplot_for(function: str) -> Any:
    """Return matplotlib's pyplot, or say how to get it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"{function}: matplotlib is not installed; run `pip install matplotlib`.") from error
    return pyplot


def _draw(matrix: Array, names: Sequence[object]) -> None:
    """Draw a confusion matrix, with its numbers, into a new figure."""
    size = 1 + 0.5 * len(matrix)
    _, place = pyplot_for("confusion_matrix").subplots(figsize=(size + 0.5, size), layout="constrained")
    place.imshow(matrix, cmap="Blues")
    for row, column in zip(*matrix.nonzero(), strict=True):
        colour = "white" if matrix[row, column] > matrix.max() / 2 else "black"
        place.text(column, row, f"{matrix[row, column]:.3g}", ha="center", va="center", color=colour)
    places = range(len(matrix))
    place.set(xlabel="predicted", ylabel="true", xticks=places, yticks=places, yticklabels=names)
    place.set_xticklabels(names, rotation="vertical" if max(len(str(name)) for name in names) > 3 else "horizontal")


def _samples(name: str, model: Trained, data: object, batch_size: int | None) -> closing[Data]:
    check_model(name.partition(":")[0], model, batch_size)
    return closing(Data(data, name, batch_size, whole=True))


def _named(function: str, labels: Sequence[object], classes: int) -> Sequence[object]:
    if isinstance(labels, str) or not isinstance(labels, Sized) or len(labels) != classes:
        raise ValueError(f"{function}: labels is {labels!r:.60}, and there are {classes} classes; a name for each is "
                         f"required.")
    return labels


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
    later = {name: metric for name, metric in metrics.items() if isinstance(metric, EpochMetric)}
    parts: list[tuple[object, object]] = []
    if data.weights is not None:
        refuse_unweighted(function, loss)
    for output, target, count, weights in _outputs(model, data):
        counted = {} if weights is None else {"sample_weight": weights}
        if share := count if weights is None else weights.sum():
            means["loss"].add(float(loss(output, target, **counted).item()), share)
        seen = on_host(output) if metrics else None
        if later:
            parts.append((seen, target))
        for name, metric in metrics.items():
            if loss is ag_mse_loss and getattr(seen, "shape", ())[:1] == (1,) and getattr(metric, "of_classes", False):
                raise ValueError(f"{function}: the metric {name} is of classes, and the loss is mse_loss of one "
                                 f"output, a number; give another loss, or a model with an output for each class and "
                                 f"class ids.")
            if name not in later:
                means[name].add(number_of(function, name, metric(seen, target)), count)
    if later:
        outputs, targets = _joined(function, parts)
    return {name: number_of(function, name, later[name](outputs, targets)) if name in later else mean.value
            for name, mean in means.items()}


def _joined(function: str, parts: Sequence[tuple[object, object]]) -> tuple[Array, Array]:
    """Return the outputs and the targets of all batches, side by side."""
    shown = [x.shape if isinstance(x, np.ndarray) else type(x).__name__ for x in parts[0]]
    if any(not isinstance(shape, tuple) or shape[-1:] != shown[1][-1:] for shape in shown) or shown[1] == ():
        raise ShapeError(f"{function}: the outputs of a batch are {shown[0]} and the targets {shown[1]}; arrays with "
                         f"the samples on the last axis are required.")
    outputs, targets = (np.concatenate([*map(np.asarray, column)], -1) for column in zip(*parts, strict=True))
    return outputs, targets


def _outputs(model: Trained, data: Data) -> Iterator[tuple[Tensor, Array, int, Array | None]]:
    """Yield output, target, number of samples and their weights of every batch."""
    with modes_kept(model), no_grad(), ag_device(device_of(model)):
        ag_eval(model)
        for leaf in data.batches():
            sample, weights = leaf if isinstance(leaf, Weighted) else (leaf, None)
            yield model.forward(input_of(leaf)), target_of(leaf), sample.samples, weights


def device_of(model: Model) -> str:
    return next((p.device for p in model.parameters().values()), None) or ag_default_device()


def loss_for(function: str, given: Loss | str | None, data: Data) -> Loss:
    """Return the user's loss, by itself or by its name, or the usual one for the kind of targets."""
    given = named(function, "loss", LOSSES, given)
    if given is not None:
        if not callable(given):
            raise TypeError(f"{function}: loss is {given!r:.60}; a function of output and target is required, such as "
                            f"ag.ops.mse_loss, or None.")
        if given is ag_bce_with_logits_loss:
            refuse_beyond(function, data.targets())
        return given
    kind = data.kind_of_targets()
    if kind == "numbers":
        return ag_mse_loss

    def cross_entropy(output: TensorLike, target: TensorLike, sample_weight: TensorLike | None = None) -> Tensor:
        if kind == "ids" and np.shape(target) == np.shape(output):
            raise ValueError(f"{function}: targets are whole numbers in the shape of the outputs, {np.shape(output)}, "
                             f"but no distributions, which are at least 0 and add up to 1; give loss, such as "
                             f"ag.ops.mse_loss for numbers, or make them class ids.")
        return ag_softmax_cross_entropy_loss(output, target, sample_weight=sample_weight)

    return cross_entropy


def check_model(function: str, model: object, batch_size: object) -> None:
    if isinstance(model, type) or not all(callable(getattr(model, name, None)) for name in ("forward", "parameters")):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        such = "types.SimpleNamespace(**model)" if isinstance(model, dict) else "ag.nn.Sequential(ag.nn.Linear(4, 3))"
        raise TypeError(f"{function}: model is {what}; an object with forward(x) and parameters() is required, such as "
                        f"{such}.")
    if not isinstance(cast(Model, model).parameters(), Mapping):
        raise TypeError(f"{function}: model is a {type(model).__name__} whose parameters() is no dict, such as one of "
                        f"PyTorch; a model of ag.nn is required. ag.io.load_weights reads weights of PyTorch.")
    if not (batch_size is None or counts(batch_size)):
        raise ValueError(f"{function}: batch_size is {batch_size!r}; a whole number of at least 1 is required.")


def why_no_mean(model: Trained, data: Data, loss: Loss) -> str | None:
    """Return why a loss of several samples is not the mean of their losses; None if it is, or cannot be compared."""
    if data.weights is not None:
        return None
    singles = [data.take(range(i, i + 1)) for i in range(min(32, data.count))]
    shard = Shard(0, singles, [1.0] * len(singles))
    half = any(p.dtype != "f32" for p in model.parameters().values())
    with modes_kept(model), no_grad(), ag_device(device_of(model)):
        ag_eval(model)
        return why_not_stacked(
            lambda leaf: float(loss(model.forward(input_of(leaf)), target_of(leaf)).item()), shard, half)
