"""`fit`: train a model in one call, on one device or several, with validation, metrics and callbacks.

`dp_train` trains, also on one device; `fit` adds epochs.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from math import inf
from typing import cast

import numpy as np

from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.data.dataloader import DataLoader
from ag.engine.device import ag_default_device, canonical
from ag.engine.shape import counts
from ag.io.safetensors_file import absolute
from ag.nn.layer import state_of
from ag.nn.mode import modes_kept, objects_in
from ag.ops.convert import ag_to_device
from ag.optim.optimizer import Optimizer
from ag.optim.rules import Adam
from ag.parallel.trainer.dp_train import dp_train
from ag.parallel.trainer.samples import LoaderSample
from ag.training.callbacks import Callback, History
from ag.training.data import Data, Leaves
from ag.training.epochs import Epochs
from ag.training.evaluation import Loss, Trained, check_batch_size, check_model, device_of, loss_for
from ag.training.logs import Progress
from ag.training.metrics import named_metrics


class ReplicaModels:
    """Models for `dp_train` to begin with: the model itself, unless `own` is False, and copies of it."""

    def __init__(self, function: str, model: Trained, devices: Sequence[str] | None, own: bool = True) -> None:
        listed = isinstance(devices, Sequence) and not isinstance(devices, str)
        if devices is not None and not (listed and all(isinstance(name, str) for name in devices)):
            raise TypeError(f"{function}: devices is {devices!r:.60}; a list of names is required, such as "
                            f"['cpu', 'cpu:1'].")
        if devices is not None and not devices:
            raise ValueError(f"{function}: devices is empty; name at least one.")
        self._model, self._gives_own = model, own
        self.devices = [device_of(model)] if devices is None else [canonical(name) for name in devices]

    def make(self) -> Trained:
        """Return the model of the next replica, on the default device: first the model itself, then copies."""
        model = self._model if self._gives_own else copy.deepcopy(self._model)
        self._gives_own = False
        with no_grad():
            for x in _tensors(model):
                if x.device != ag_default_device():
                    x.rebind(ag_to_device(x, ag_default_device()).buffer)
        return model

    def finish(self, trained: Trained) -> None:
        """Give the model the state of another replica, if its own device was lost."""
        if trained is not self._model:
            theirs = state_of(trained)
            for name, x in state_of(self._model).items():
                x.rebind(theirs[name].buffer)


def _tensors(model: Trained) -> Iterator[Tensor]:
    """Yield all tensors in a model, also those that are no state."""
    return (x for x in objects_in(model) if isinstance(x, Tensor))


def fit(
    model: Trained,
    train: object,
    valid: object = None,
    epochs: int = 10,
    loss: Loss | None = None,
    metrics: object = None,
    callbacks: Sequence[Callback] | Callback = (),
    *,
    batch_size: int | None = None,
    lr: float = 1e-3,
    optimizer: Callable[[dict[str, Tensor]], Optimizer | Sequence[Optimizer]] | None = None,
    scheduler: Callable[[Optimizer], object] | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    devices: Sequence[str] | None = None,
    leaf: int | None = None,
    balance: str | Sequence[float] = "equal",
    max_norm: float = inf,
    on_nonfinite: str = "raise",
    capture: bool | str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    verbose: bool = True,
) -> History:
    """Train a model on samples, epoch by epoch, and measure how good it becomes.

    Reference: Keras ``Model.fit``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
        Trained in place, from the weights that it has.
    train : pair of arrays, ag_dataloader, ag_image_folder or dataset
        ``(X, y)`` with the samples on the first axis of both; or an object with ``len()`` and ``[i]``, whose samples
        are pairs.  Without targets, outputs are compared with the inputs.
    valid : like `train`, optional
        What the model is measured with after every epoch.
    epochs : int, optional
        Passes over the samples.
    loss : callable, optional
        ``loss(output, target)``: a tensor of one element, the mean over the samples of a batch.  Default:
        `ag_softmax_cross_entropy_loss` where targets are whole numbers, class ids or distributions such as one-hot
        vectors, otherwise `ag_mse_loss`.  Other whole numbers in the shape of the outputs are refused.
    metrics : list of str and callable, or dict of str to callable, optional
        "accuracy", "mean_absolute_error", "mean_squared_error", "top_5_accuracy", or another name of scikit-learn, such
        as "f1_macro", "roc_auc", "r2" or "log_loss".  With more than two classes "f1", "precision" and "recall" are
        means over classes.  Or functions ``metric(output, target)`` of arrays that return one number, the mean over the
        samples of a batch, and `EpochMetric` objects, which see all samples at once.
    callbacks : sequence of Callback, optional
        Such as ``ag.training.EarlyStopping(patience=3)``; called in their order.
    batch_size : int, optional
        Samples per step, on all devices together; default: the loader's, or 32.  The last batch may be smaller.
    lr : float, optional
        Learning rate of Adam; an `optimizer` has its own.
    optimizer : callable, optional
        ``optimizer(params)``: another optimizer, such as ``lambda p: ag.optim.SGD(p, lr=0.1)``, or a list of several.
    scheduler : callable, optional
        ``scheduler(optimizer)``: an object whose ``step()`` is called after every step.
    shuffle : bool, optional
        Take the samples of every epoch in a new order, which follows from the seed.
    seed : int, optional
        Call `ag_seed` with it first.
    devices : sequence of str, optional
        Where to train; default: the device on which the model is.  With others the model moves to the first of them.
    leaf : int, optional
        How many samples are passed at once; default: those of a batch, shared out among the devices.
    balance : "equal", "auto" or sequence of float, optional
        Share of the leaves for each device, as of `dp_train`.
    max_norm : float, optional
        Clip the global gradient norm to this.
    on_nonfinite : {"raise", "skip"}, optional
        If a loss or gradient is not finite: raise, or leave out that step's update, and an infinite loss.
    capture : bool or "auto", optional
        Replay captured steps; "auto" where possible.
    checkpoint : path, optional
        File to write the state of the training to, after every epoch, at the end and after Ctrl-C.
    resume : bool, optional
        Go on from `checkpoint` if that file exists; `epochs` counts those done before, too.
    verbose : bool, optional
        Show a bar for every epoch, or a line where there is no screen.

    Returns
    -------
    History
        ``history["loss"]``, ``history["val_loss"]`` and so on, a number per epoch, and ``history.plot()``.

    Raises
    ------
    FloatingPointError
        If a loss or gradient is not finite; weights are those before the step.
    CheckpointError
        If `checkpoint` cannot be read or written, or belongs to another training.

    Notes
    -----
    Arrays have their samples on the first axis here, and ag's tensors on the last: a batch of ``X`` of shape
    (n, features) reaches the model, the loss and the metrics as (features, batch), one of images
    (n, channels, height, width) as (channels, height, width, batch).  Images without an axis of channels need one:
    ``X[:, None]``.

    The model trains in train mode, is measured in eval mode, and has its own modes afterwards.  ``history["loss"]`` is
    the mean of the losses in training.  Metrics are measured after the epoch: with `valid`, as ``val_...``, or else
    with the training samples.  All means are over samples, whatever the sizes of batches.

    The promises of `dp_train` hold: for the same `batch_size` and `leaf`, any number of like devices gives the same
    weights to the bit, and so does a resumed training.  Batch norm in train mode is over a leaf.

    A second call goes on with the weights, and begins with a new optimizer.  After Ctrl-C the history has the epochs
    that were finished, and ``interrupted`` is set; before the first step it is raised.

    Examples
    --------
    >>> import ag, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    >>> y = (X[:, 0] > X[:, 1]).astype(int)
    >>> history = ag.fit(ag.ag_linear(2, 2), (X[:40], y[:40]), (X[40:], y[40:]), epochs=3, metrics=["accuracy"],
    ...                  verbose=False)
    >>> list(history)
    ['loss', 'val_loss', 'val_accuracy', 'lr']
    """
    check_model("fit", model)
    check_batch_size("fit", batch_size)
    for name, value in (("shuffle", shuffle), ("resume", resume), ("verbose", verbose)):
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"fit: {name} is {value!r:.60}; True or False is required.")
    if not counts(epochs, least=0):
        raise ValueError(f"fit: epochs is {epochs!r:.60}; a whole number of at least 0 is required.")
    if not (leaf is None or counts(leaf)):
        raise ValueError(f"fit: leaf is {leaf!r:.60}; a whole number of at least 1 is required, or None.")
    if resume and checkpoint is None:
        raise ValueError("fit: resume was given without checkpoint; name the file.")
    if optimizer is not None and (isinstance(optimizer, Optimizer) or not callable(optimizer)):
        raise TypeError(f"fit: optimizer is a {type(optimizer).__name__}; a function that makes one is required, such "
                        f"as lambda params: ag.optim.SGD(params, lr=0.1).")
    if optimizer is not None and lr != 1e-3:  # the default is no choice of the caller's
        raise ValueError(f"fit: lr is {lr!r:.60} and optimizer is given, which has a rate of its own; write it there, "
                         f"as in optimizer=lambda params: ag.optim.SGD(params, lr=0.1).")
    checkpoint = absolute(checkpoint)  # callbacks may change the folder
    measured, called = named_metrics("fit", metrics), _callbacks(callbacks)
    replicas = ReplicaModels("fit", model, devices)
    data = Data(train, "fit: train", batch_size)
    source, name = (train, "fit: train") if valid is None else (valid, "fit: valid")
    held = Data(source, name, None if isinstance(source, DataLoader) else batch_size, whole=True)
    if data.count == held.count and _is_bare(train) and _is_bare(valid):  # Keras' fit(X, y): it would fit X to itself
        raise TypeError(f"fit: train and valid are arrays of {data.count} samples each, without targets; targets "
                        f"belong to train. Write fit(model, (X, y)), or (X, X) where the inputs are the targets.")
    loop = Epochs(model, data, loss_for("fit", loss, data), held, valid is not None, measured, int(epochs),
                  [*called, *([Progress()] if verbose else [])])
    size = leaf or -(-data.batch_size // len(replicas.devices))
    with closing(data), closing(held), modes_kept(model):
        steps = loop.steps_of(checkpoint if resume else None, size)
        leaves = Leaves(data, size, bool(shuffle), steps)
        with loop:
            result = dp_train(
                replicas.make, cast(Sequence[LoaderSample], leaves), loop.loss, n_iter=steps,
                max_norm=max_norm, verbose=False, devices=replicas.devices,
                optimizer=lambda params: loop.owns(Adam(params, lr=lr) if optimizer is None else optimizer(params)),
                scheduler=scheduler, batch=leaves.each, stack=1, shuffle=False,
                weight_fn=Leaves.weight if leaves.each > 1 else None, seed=seed, balance=balance,
                on_nonfinite=on_nonfinite, capture=capture, checkpoint=checkpoint,
                checkpoint_every=None if checkpoint is None else data.steps, resume=bool(resume), callback=loop)
            replicas.finish(result.model)
            loop.finish(model, result.interrupted)
    return loop.run.history


def _is_bare(given: object) -> bool:
    """Return whether it is an array, or a list without pairs: nothing in it is a target."""
    return hasattr(given, "__array__") or (isinstance(given, list) and not isinstance(given[0], tuple))


def _callbacks(given: object) -> list[Callback]:
    """Return the callbacks of a list, or the only one."""
    listed = [given] if isinstance(given, Callback) else given
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not all(isinstance(x, Callback) for x in listed):
        odd = next((x for x in listed if not isinstance(x, Callback)), listed) if isinstance(listed, list) else listed
        raise TypeError(f"fit: callbacks is {odd!r:.60}, or has it in it; a list of ag.training.Callback objects is "
                        f"required, such as [ag.training.EarlyStopping()].")
    return list(listed)
