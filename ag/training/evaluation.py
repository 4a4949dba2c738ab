"""The samples of a training, as leaves for `dp_train`; and what a model makes of them in eval mode, and how good it is.

Leaves of a batch are equally large, as far as possible, as batch norm needs two samples.  Evaluating leaves modes, the
default device and the random generator as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ag.autograd.tape import no_grad
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.autograd.tree import tree_map
from ag.data.dataloader import DataLoader
from ag.data.samples import Pass, is_torch_loader
from ag.engine.device import ag_default_device, ag_device
from ag.engine.primitive import Array
from ag.engine.random import current_seed
from ag.engine.shape import counts
from ag.errors import ShapeError
from ag.nn.layer import Model
from ag.nn.mode import ag_eval, modes_kept
from ag.ops.loss import ag_bce_with_logits_loss, ag_mse_loss, ag_softmax_cross_entropy_loss, refuse_beyond
from ag.parallel.trainer.host_optimizer import LOSSES, named
from ag.parallel.trainer.samples import (
    Batches,
    LoaderSample,
    Samples,
    Shard,
    Weighted,
    all_alike,
    input_of,
    loader_sample,
    refuse_unweighted,
    sample_weights,
    stacked,
    target_of,
    why_not_stacked,
)
from ag.training.metrics import EpochMetric, Mean, Metric, class_ids, classes_of, named_metrics, number_of, on_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    Axes = object

__all__ = ["confusion_matrix", "evaluate", "predict"]

Loss = Callable[..., Tensor]  # (output, target) -> the mean over the samples
_ENDLESS = 1 << 62  # leaves, of any number of epochs


class Trained(Model, Protocol):
    """A model that computes: a `Layer`, or any object with ``forward(x)`` and ``parameters()``."""

    @property
    def forward(self) -> Callable[..., Tensor]:
        """The output for an input with samples on the last axis."""


class Data:
    """The samples of a training, or of its validation, in batches; `name` begins messages, as "fit: train"."""

    def __init__(self, given: object, name: str, batch_size: int | None = None, whole: bool = False, *,
                 shuffle: bool | None = None, sample_weight: object = None, class_weight: object = None) -> None:
        self._name = name
        self._likely = False  # whether targets should be distributions, as the first is
        self._begun, self._shuffles = shuffle is None, bool(shuffle)
        if whole and isinstance(given, tuple) and len(given) == 3:
            *pair, sample_weight = given
            given = tuple(pair)
        self._loader = given if isinstance(given, DataLoader) else _loader(given, name)
        self.columns = list(getattr(given[0] if isinstance(given, tuple) else given, "columns", ()))
        weights = sample_weights(name, self._loader.n_samples, sample_weight, class_weight, self._loader.labels)
        self.weighed = weights  # also those of samples that count nothing
        self._numbers = np.arange(self._loader.n_samples)  # of the samples as they were given
        if weights is not None and not weights.all() and not (whole or self._loader.threads or self._loader is given):
            self._numbers = weights.nonzero()[0]  # the others count nothing
            arrays = self._loader.samples(self._numbers, Pass(0, 0))
            self._loader = DataLoader(arrays[0], arrays[1] if len(arrays) > 1 else None, seed=0)
            weights = weights[self._numbers]
        self.weights = weights
        self._samples = Samples(self._loader)
        self.close, self.ahead = self._samples.close, self._samples.ahead  # steps for which samples are announced
        self.targets = self._loader.targets  # all, or the first where they are made
        self._all = self._loader.n_samples
        asked = self._loader.batch_size if batch_size is None else int(batch_size)
        self.batch_size = min(asked, self._all)
        drops = self._loader.drop_last and not whole
        if drops and asked > self._all:
            raise ValueError(f"{name} drops a last batch that is smaller, and {self._all} samples make no batch of "
                             f"{asked}; give a smaller batch_size, or drop_last=False.")
        # samples and batches per epoch
        self.count = self._all - self._all % self.batch_size if drops else self._all
        self.steps = -(-self.count // self.batch_size)

    @property
    def shuffles(self) -> bool:
        """Return whether every epoch has an order of its own."""
        return self._shuffles and self._loader.shuffle

    @property
    def in_memory(self) -> bool:
        """Return whether samples are parts of arrays: taking one draws nothing."""
        return not self._loader.threads

    def step(self, k: int) -> range:
        """Return the places of a step's samples, of all epochs."""
        epoch, batch = divmod(k, self.steps)
        start = epoch * self._all
        return range(start + batch * self.batch_size, start + min((batch + 1) * self.batch_size, self.count))

    def chosen(self, places: range) -> Array:
        """Return the numbers of samples of one epoch; the job's seed is settled when it asks for the first."""
        if not self._begun:  # epochs have orders of their own, unless the loader has none
            self._begun = True
            self._samples.begin(current_seed(), self.shuffles)
        turn, first = divmod(places.start, self._all)
        return self._samples.order(turn)[first : first + len(places)]

    def counted(self, k: int) -> float:
        """Return what a step's samples count together."""
        places = self.step(k)
        return len(places) if self.weights is None else float(self.weights[self.chosen(places)].sum())

    def numbers(self, places: range) -> Sequence[int]:
        numbers: list[int] = self._numbers[self.chosen(places)].tolist()
        return numbers

    def take(self, places: range, coming: Iterable[int] = ()) -> LoaderSample | Weighted:
        """Return samples of one epoch, on the last axis; threads make those that come next meanwhile."""
        chosen = self.chosen(places)
        leaf = loader_sample(*self._loader.samples(chosen, Pass(0, 0))) if self.in_memory else self._made(
            places, coming)
        return leaf if self.weights is None else Weighted(leaf, self.weights[chosen])

    def _made(self, places: range, coming: Iterable[int]) -> LoaderSample:
        made = self._samples.at(places, coming)
        if not all_alike(made):
            shape, dtype = tree_map(np.shape, made[0].x), tree_map(lambda x: x.dtype, made[0].x)
            raise ShapeError(f"{self._name} holds samples of different shapes or types, such as {shape} of {dtype}; "
                             f"the samples of a batch must be alike. Pad or resize them.")
        leaf: LoaderSample = stacked(made)
        if self._likely and not _are_distributions(target_of(leaf)):
            raise ValueError(f"{self._name} begins with a target of whole numbers that is a distribution, at least 0 "
                             f"with the sum 1, and has others that are none; give loss, or targets of one kind.")
        return leaf

    def batches(self) -> Iterator[LoaderSample | Weighted]:
        for k in range(self.steps):
            yield self.take(self.step(k), chain.from_iterable(
                self.step(later) for later in range(k + 1, min(k + 1 + self.ahead, self.steps))))

    def kind_of_targets(self) -> str:
        """Return "numbers"; or of whole numbers "distributions" if all are, as one-hot vectors, or else "ids".

        Of samples that are made when they are needed the first decides, and others must be like it.
        """
        targets = self.targets()
        if not isinstance(targets, np.ndarray):
            raise TypeError(f"{self._name} has {type(targets).__name__}s for samples, in which no array is the target; "
                            f"give ag.data.DataLoader(samples, target=\"label\"), or a loss of your own.")
        if targets.dtype.kind not in "biu":
            return "numbers"
        if targets.ndim == 1 or not _are_distributions(targets):
            return "ids"
        self._likely = bool(self._loader.threads)
        return "distributions"


def _are_distributions(targets: Array) -> bool:
    """Return whether columns are of numbers from 0 that add up to 1."""
    return bool((targets >= 0).all() and (targets.sum(0) == 1).all())


class _Spare(LoaderSample):
    """A leaf that counts nothing."""


class _WeightedSpare(Weighted):
    """A leaf with weights that counts nothing all the same."""


class Leaves(Batches):
    """All leaves of all epochs in order, with a length and items: the data of `dp_train`."""

    def __init__(self, data: Data, size: int, steps: int) -> None:
        self._data, self._size, self._until = data, min(size, data.batch_size), steps
        self.each = -(-data.batch_size // self._size)  # leaves in a step
        self.columns = data.columns
        self._last: LoaderSample | Weighted | None = None

    def __len__(self) -> int:
        return _ENDLESS

    def _places(self, i: int) -> tuple[range, range]:
        """Return the places of a leaf's samples, and those of its step."""
        k, j = divmod(i, self.each)
        places = self._data.step(k)
        each, more = divmod(len(places), -(-len(places) // self._size))
        start = j * each + min(j, more)
        return places[start : start + each + (j < more)], places

    def numbers(self, i: int) -> Sequence[int]:
        """Return the numbers of a leaf's samples; a spare one has none of its own."""
        return self._data.numbers(self._places(i)[0])

    def __getitem__(self, i: int) -> LoaderSample | Weighted:
        mine, places = self._places(i)
        if not mine and self._last is not None:
            return _WeightedSpare(*self._last) if isinstance(self._last, Weighted) else _Spare(*self._last)
        k = i // self.each
        later = range(k + 1, min(k + 1 + self._data.ahead, self._until)) if self._data.ahead else ()
        coming = chain(range(mine.stop, places.stop), *map(self._data.step, later))
        self._last = self._data.take(mine, coming)
        return self._last

    @staticmethod
    def weight(leaf: LoaderSample | Weighted) -> float:
        """Return how many samples a leaf counts, or what its weights are together."""
        if isinstance(leaf, (_Spare, _WeightedSpare)):
            return 0.0
        return leaf.total() if isinstance(leaf, Weighted) else float(leaf.samples)


def _loader(given: object, name: str) -> DataLoader:
    if is_torch_loader(given):
        return DataLoader(given, seed=0)
    parts = given if isinstance(given, tuple) and not hasattr(given, "__array__") else (given,)
    if parts is given and len(parts) != 2:
        raise TypeError(f"{name} is a tuple of {len(parts)}; a pair (X, y) is required, weights as sample_weight.")
    for part in parts:
        bad = isinstance(part, (str, bytes, Mapping)) or not (hasattr(part, "__len__") and hasattr(part, "__getitem__"))
        if bad or (hasattr(part, "ndim") and part.ndim == 0):
            raise TypeError(f"{name} {'has' if parts is given else 'is'} a {type(part).__name__}; a pair of arrays "
                            f"(X, y) with samples on the first axis is required, an ag_dataloader, an ag_image_folder, "
                            f"or a dataset with len() and [i].")
    lengths = [part.shape[0] if isinstance(part, Tensor) else len(cast(Sequence[object], part)) for part in parts]
    if lengths[0] != lengths[-1]:
        raise ShapeError(f"{name} has {lengths[0]} inputs and {lengths[1]} targets; as many are required, on the first "
                         f"axis of both.")
    if lengths[0] == 0:
        raise ValueError(f"{name} holds no samples; at least one is required.")
    # A seed of its own, which is never used: nothing is drawn from ag's generator.
    return DataLoader(parts[0], parts[1] if parts is given else None, col_major=False, seed=0)


def evaluate(model: Trained, data: object, loss: Loss | str | None = None, metrics: object = None, *,
             batch_size: int | None = None) -> dict[str, float]:
    """Return ``loss`` and each metric, by name, of a model over all samples, in eval mode.

    Reference: Keras ``Model.evaluate``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    data : pair of arrays, ag_dataloader, ag_image_folder or dataset
        Like all arguments as in `fit`; also samples that a loader would drop, in their first order.  A triple
        ``(X, y, sample_weight)`` is for a weighted loss.
    loss, metrics, batch_size : optional

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

    Of a model whose output is (features, batch) they are (samples, features), or (samples,) with `labels`.  A
    ShapeError says that an output has its samples on another axis than the last.
    Reference: Keras ``Model.predict``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    x : array_like of shape (samples, ...), ag_dataloader or dataset
        Inputs; targets of a loader or a dataset are not used.
    labels, batch_size : optional
        True: return class ids, as `accuracy` finds them: one output is a logit.  A name for each class: return names.

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
        raise ShapeError(f"predict: the model made one number per sample, {found.shape}; labels need (classes, batch).")
    _refuse_nan("predict", np.isnan(found).reshape(len(found), -1).any(1))
    ids = np.moveaxis(class_ids(np.moveaxis(found, 0, -1)), -1, 0)
    if isinstance(labels, (bool, np.bool_)):
        return ids
    return np.asarray(_named("predict", labels, max(2, found.shape[1])))[ids]


def confusion_matrix(model: Trained | ArrayLike, data: object, *, labels: Sequence[object] | None = None,
                     plot: bool = False, batch_size: int | None = None) -> Array:
    """Count how many samples of each true class, a row, a model takes for each class, a column.

    NaN among outputs is a ValueError.
    Reference: scikit-learn ``confusion_matrix``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``, or array_like
        Or the outputs themselves, of shape (classes, samples); one per sample is a logit.
    data : pair of arrays, ag_dataloader, ag_image_folder or dataset, or array_like
        As in `evaluate`; of outputs, the targets of the shape (samples,).
    labels, plot, batch_size : optional
        With ``plot=True`` also draw a picture, into a new figure of pyplot, with the names of the classes in `labels`.

    Examples
    --------
    >>> ag.training.confusion_matrix([[0.1, 0.9, 0.7], [0.8, 0.3, 0.2]], [1, 1, 0]).tolist()
    [[1, 0], [1, 1]]
    """
    output, target = model, data
    if not isinstance(model, (Tensor, np.ndarray, list, tuple)):
        with _samples("confusion_matrix: data", cast(Trained, model), data, batch_size) as samples:
            output, target = _joined("confusion_matrix", [
                (on_host(output), target) for output, target, *_ in _outputs(cast(Trained, model), samples)])
    values, ids = classes_of("confusion_matrix", cast(ArrayLike, output), target, least=1)
    _refuse_nan("confusion_matrix", ids < 0)
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


def _refuse_nan(function: str, odd: Array) -> None:
    """Refuse samples without a class; `odd` says of each whether it has NaN."""
    if odd.any():
        raise ValueError(f"{function}: {odd.sum()} of {odd.size} samples have NaN among their outputs, so they are of "
                         f"no class. Look at the data, or train with a lower lr.")


def _named(function: str, labels: Sequence[object], classes: int) -> Sequence[object]:
    if isinstance(labels, str) or not isinstance(labels, Sized) or len(labels) != classes:
        raise ValueError(f"{function}: labels is {labels!r:.60}, and there are {classes} classes; give each a name.")
    return labels


def _samples_first(output: object, count: int) -> Array:
    """Return an output as an array with its samples on the first axis."""
    if not isinstance(output, Tensor):
        raise TypeError(f"predict: the model returned a {type(output).__name__}; a tensor, samples last, is required.")
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
                                 f"output, a number; give another loss, or a model with an output per class, and ids.")
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
