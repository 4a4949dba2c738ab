"""Estimators: networks as scikit-learn has its models, for pipelines, grid search and cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ag.autograd.tensor import Tensor
from ag.engine.device import ag_default_device, ag_device
from ag.engine.primitive import Array
from ag.engine.random import ag_seed, generator_snapshot, restore_generator
from ag.engine.shape import counts
from ag.names import answer_arguments, missing
from ag.names.elsewhere import ESTIMATOR
from ag.nn.functions import Dropout
from ag.nn.layer import Layer
from ag.nn.linear import Linear
from ag.nn.sequential import Sequential
from ag.optim.optimizer import Optimizer
from ag.optim.settings import PART, whole
from ag.parallel.trainer.dp_train import check_devices
from ag.parallel.trainer.host_optimizer import LOSSES, named, optimizer_for
from ag.parallel.trainer.samples import sample_weights
from ag.training.callbacks import BestWeights, Callback, EarlyStopping
from ag.training.evaluation import Loss, Trained, predict
from ag.training.fit import callbacks_of, fit

_Maker = Callable[[dict[str, Tensor]], Optimizer]
_TOGETHER = 256  # samples that are predicted at once


@dataclass(repr=False, eq=False)
class _Estimator(BaseEstimator):
    """The part that classifier and regressor share."""

    _losses: ClassVar[tuple[tuple[str, ...], str, str]]  # the usual one first, what others are for, who takes them

    hidden: Sequence[int] = (64,)
    activation: str = "relu"
    make_model: Callable[[int, int], Trained] | None = None
    epochs: int = 50
    batch_size: int = 32
    lr: float = 1e-2
    loss: Loss | str | None = None
    optimizer: Callable[[dict[str, Tensor]], Optimizer] | str | None = None
    patience: int | None = None
    validation_fraction: float = 0.1
    devices: Sequence[str] | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False
    metrics: object = None
    scheduler: Callable[[Optimizer], object] | str | None = None
    callbacks: Sequence[Callback] | Callback | None = ()
    weight_decay: float = 0.0
    dropout: float = 0.0

    if not TYPE_CHECKING:
        __getattr__ = missing(ESTIMATOR)

    def _train(self, X: Array, y: Array, weights: Array | None, outputs: int, stratify: Array | None) -> None:
        """Make a model and train it."""
        function, ((usual, *more), kind, other) = type(self).__name__, self._losses
        loss = named(function, "loss", LOSSES, self.loss or usual)
        if loss in LOSSES.values() and loss not in [LOSSES[name] for name in (usual, *more)]:
            raise ValueError(f"{function}: loss is {self.loss!r:.60}, which is {kind}; use {usual!r}, a function of "
                             f"your own, or {other}.")
        check_devices(function, self.devices)
        whole(function, "epochs", self.epochs)
        if self.make_model is not None:
            if isinstance(self.make_model, Layer) or not callable(self.make_model):
                raise TypeError(f"{function}: make_model is a {type(self.make_model).__name__}; a function that makes "
                                f"a model is required, such as lambda inputs, outputs: ag.nn.Linear(inputs, outputs).")
            self._refuse_changed("make_model is given, which makes the layers; write it there.", "hidden", "activation",
                                 "dropout")
        seed = int(check_random_state(self.random_state).randint(1 << 31))
        valid: tuple[Array, ...] | None = None
        callbacks = callbacks_of(type(self).__name__, self.callbacks)
        if weights is not None and not weights.all():
            counted = weights > 0
            X, y, weights = X[counted], y[counted], weights[counted]
            stratify = None if stratify is None else stratify[counted]
        if self.patience is not None:
            parts = train_test_split(X, y, *([] if weights is None else [weights]), test_size=self.validation_fraction,
                                     random_state=seed, stratify=stratify)
            (X, y, *given), valid = parts[::2], tuple(parts[1::2])
            weights = given[0] if given else None
            callbacks += [EarlyStopping(self.patience), BestWeights()]
        before = generator_snapshot()
        try:
            ag_seed(seed)
            with ag_device(self.devices[0] if self.devices else ag_default_device()):
                self.model_ = (self.make_model or self._perceptron)(X.shape[1], outputs)
            if isinstance(self, ClassifierMixin) and self.make_model is not None:
                shape = predict(self.model_, X[:1]).shape
                if shape != (1, outputs):  # an output more or less would have no label
                    raise ValueError(f"{type(self).__name__}: the model of make_model has outputs of shape {shape[1:]} "
                                     f"for a sample, and y has {outputs} classes; make_model(features, classes) must "
                                     f"return a model with one logit per class.")
            self.history_ = fit(
                self.model_, (X, y), valid, self.epochs, loss, callbacks=callbacks,
                batch_size=self.batch_size, devices=self.devices, verbose=bool(self.verbose), metrics=self.metrics,
                sample_weight=weights, scheduler=self.scheduler, optimizer=self._maker())
        finally:
            restore_generator(before)
        self.loss_curve_ = self.history_["loss"]

    def _refuse_changed(self, why: str, *names: str) -> None:
        """Refuse settings without an effect that are not the usual ones."""
        for name in names:
            if not np.array_equal(value := getattr(self, name), getattr(type(self), name)):  # also a list and a tuple
                raise ValueError(f"{type(self).__name__}: {name} is {value!r:.60}, and {why}")

    def _maker(self) -> _Maker:
        function, name = type(self).__name__, self.optimizer or "adam"
        if not isinstance(name, str):
            self._refuse_changed("optimizer is a function; write it there, as in lambda params: ag.optim.AdamW(params, "
                                 "lr=0.01, weight_decay=0.1).", "lr", "weight_decay")
            return name
        decay = {"weight_decay": self.weight_decay} if self.weight_decay or name == "adamw" else {}
        made: _Maker = optimizer_for(function, "adamw" if decay and name == "adam" else name, lr=self.lr, **decay)
        return made

    def _perceptron(self, inputs: int, outputs: int) -> Sequential:
        function, dropout = type(self).__name__, PART(type(self).__name__, "dropout", self.dropout)
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str) or not counts(*self.hidden):
            raise ValueError(f"{function}: hidden is {self.hidden!r:.60}; give sizes of layers, as (64, 32).")
        sizes, layers = [inputs, *map(int, self.hidden)], list[Layer]()
        for a, b in pairwise(sizes):
            layers += [Linear(a, b, activation=self.activation), *([Dropout(dropout)] if dropout else [])]
        return Sequential(*layers, Linear(sizes[-1], outputs))

    def _outputs(self, X: Array) -> Array:
        """Return outputs in float64, in batches of one size: a sample's do not depend on the others."""
        check_is_fitted(self)
        with np.errstate(all="ignore"):
            X = validate_data(self, X, reset=False, dtype=np.float32)
        filled = np.concatenate([X, np.zeros((-len(X) % _TOGETHER, X.shape[1]), np.float32)])
        return predict(self.model_, filled, batch_size=_TOGETHER)[: len(X)].astype(np.float64)


@dataclass(repr=False, eq=False)
class AgClassifier(ClassifierMixin, _Estimator):
    """A network that classifies, as an estimator of scikit-learn.

    Inputs should be scaled, such as by ``StandardScaler`` in a pipeline.  Computing is in float32, so weights equal
    repetitions but for rounding.  For small data ``n_jobs=1`` of searches is the quickest: kernels have threads.

    Parameters
    ----------
    hidden, activation : sequence of int, str, optional
        Sizes of the hidden layers, () for a linear model, and their activation.
    make_model : callable, optional
        ``make_model(features, classes)``: another model, from (features, batch) to logits (classes, batch).
    epochs, batch_size, lr : optional
        As of `fit`.
    loss : callable or str, optional
        ``loss(logits, ids)``; default: `ag_softmax_cross_entropy_loss`.
    optimizer : callable or str, optional
        As of `fit`; a function has its own `lr` and `weight_decay`.
    patience, validation_fraction : optional
        Keep a share of the samples back for validation, stop after so many epochs without a better one, take the best.
    devices : sequence of str, optional
        Where to train; default: the default device.
    random_state : int, RandomState or None, optional
        For initial weights, orders and validation samples; ag's random generator is left as it was.
    verbose, metrics, scheduler, callbacks : optional
        As of `fit`; metrics are columns of ``history_``.
    weight_decay, dropout : float, optional
        How strongly an optimizer that is named shrinks weights (Adam is AdamW then), and the share of dropped values.
    class_weight : "balanced" or dict of label to float, optional
        As of `fit`, times ``sample_weight`` of ``fit(X, y, sample_weight)``.

    Attributes
    ----------
    classes_, model_, history_, n_features_in_ : ndarray, Layer or object, History, int
        The labels, the trained model, its training, whose loss in each epoch is ``loss_curve_``, a sample's features.

    Examples
    --------
    >>> import numpy as np
    >>> from ag.training import AgClassifier
    >>> X = np.random.default_rng(0).normal(size=(80, 2))
    >>> y = np.where(X[:, 0] > X[:, 1], "left", "right")
    >>> float(AgClassifier(epochs=20, random_state=0).fit(X, y).score(X, y)) > 0.9
    True
    """

    class_weight: object = None
    _losses = ("cross_entropy",), "not for one logit per class", "AgRegressor"

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> AgClassifier:
        """Train a new model on `X` of shape (samples, features) and labels of any kind."""
        with np.errstate(all="ignore"):
            X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, ids = np.unique(y, return_inverse=True)
        weights = sample_weights("AgClassifier", len(X), sample_weight, self.class_weight, lambda: y)
        self._train(X, ids, weights, len(self.classes_), ids)
        return self

    def predict_proba(self, X: Array) -> Array:
        """Return probabilities of shape (samples, classes), in the order of ``classes_``."""
        with np.errstate(all="ignore"):
            shares: Array = softmax(self._outputs(X))
        return shares

    def predict(self, X: Array) -> Array:
        """Return the most probable label of every sample."""
        logits = self._outputs(X)  # first, as it refuses a model that is not trained
        labels: Array = self.classes_[logits.argmax(1)]
        return labels


@dataclass(repr=False, eq=False)
class AgRegressor(RegressorMixin, _Estimator):
    """A network for regression, as an estimator of scikit-learn, with the parameters of `AgClassifier`.

    `make_model(features, targets)` makes a model to (targets, batch), `loss` is `ag_mse_loss` by default, and inputs
    should be scaled.  Targets are standardised here: `model_` and `loss` have those with ``target_mean_`` taken off,
    divided by ``target_scale_``.  `predict` undoes it.

    Examples
    --------
    >>> import numpy as np
    >>> from ag.training import AgRegressor
    >>> X = np.random.default_rng(0).normal(size=(80, 2))
    >>> float(AgRegressor(epochs=60, random_state=0).fit(X, X[:, 0] * 2).score(X, X[:, 0] * 2)) > 0.9
    True
    """

    _losses = ("mse", "l1", "huber"), "not for numbers", "AgClassifier"

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> AgRegressor:
        """Train a new model on `X` of shape (samples, features) and `y` of (samples,) or (samples, targets)."""
        with np.errstate(all="ignore"):
            X, y = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
            targets = np.asarray(y, np.float64)
            weights = sample_weights("AgRegressor", len(X), sample_weight, None, lambda: None)
            self.target_mean_ = np.average(targets, 0, weights)
            spread = np.sqrt(np.average((targets - self.target_mean_) ** 2, 0, weights))
            self.target_scale_ = np.where(spread > 0, spread, 1.0)
            targets = ((targets - self.target_mean_) / self.target_scale_).astype(np.float32)
        self._many = y.ndim == 2
        self._train(X, targets, weights, y.shape[1] if self._many else 1, None)
        return self

    def predict(self, X: Array) -> Array:
        """Return targets of shape (samples,), or (samples, targets) if they were given so."""
        outputs = self._outputs(X) * self.target_scale_ + self.target_mean_
        return outputs if self._many else outputs[:, 0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


answer_arguments({"AgClassifier": AgClassifier, "AgRegressor": AgRegressor}, "ag.training.estimators")
