"""Evaluate and predict: a model's outputs for many samples, in batches, in eval mode and without a tape.

Modes, the default device and the random generator stay as they were.  Means are over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, SupportsFloat

import numpy as np

from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.device import ag_default_device, ag_device
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import ShapeError
from ag.nn.layer import Model
from ag.nn.mode import ag_eval, modes_kept
from ag.ops.loss import ag_mse_loss, ag_softmax_cross_entropy_loss
from ag.parallel.trainer.samples import input_of, target_of
from ag.training.data import Data
from ag.training.metrics import Mean, Metric, named_metrics

Loss = Callable[[Tensor, Array], Tensor]  # (output, target) -> the mean over the samples


class Trained(Model, Protocol):
    """A model that computes: a `Layer`, or any object with ``forward(x)`` and ``parameters()``."""

    @property
    def forward(self) -> Callable[..., Tensor]:
        """The output for an input with samples on the last axis."""


def evaluate(model: Trained, data: object, loss: Loss | None = None, metrics: object = None, *,
             batch_size: int | None = None) -> dict[str, float]:
    """Return loss and metrics of a model, averaged over samples, in eval mode.

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

    References
    ----------
    Keras ``Model.evaluate``.

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
    samples = Data(data, "evaluate: data", batch_size, whole=True)
    try:
        return means_of("evaluate", model, samples, loss_for("evaluate", loss, samples), found)
    finally:
        samples.close()


def predict(model: Trained, x: object, *, batch_size: int | None = None) -> Array:
    """Return the outputs of a model, in eval mode, with the samples on the first axis.

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

    References
    ----------
    Keras ``Model.predict``.

    Examples
    --------
    >>> import ag, numpy as np
    >>> ag.training.predict(ag.ag_linear(3, 2), np.ones((5, 3))).shape
    (5, 2)
    """
    check_model("predict", model)
    check_batch_size("predict", batch_size)
    samples = Data(x, "predict: x", batch_size, whole=True)
    try:
        outputs = [_samples_first(output, count) for output, _, count in _outputs(model, samples)]
    finally:
        samples.close()
    return np.concatenate(outputs)


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
        return _squared

    def cross_entropy(output: TensorLike, target: TensorLike) -> Tensor:
        if kind == "ids" and np.shape(target) == np.shape(output):
            raise ValueError(f"{function}: targets are whole numbers in the shape of the outputs, {np.shape(output)}, "
                             f"but no distributions, which are at least 0 and add up to 1; give loss, such as "
                             f"ag.ops.mse_loss for numbers, or make them class ids.")
        return ag_softmax_cross_entropy_loss(output, target)

    return cross_entropy


def _squared(output: TensorLike, target: TensorLike) -> Tensor:
    return ag_mse_loss(output, target)


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
