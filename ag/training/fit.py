"""`fit`: train a model in one call, on one device or several, with validation, metrics and callbacks.

`dp_train` trains, also on one device; `fit` adds epochs, and advice on data and devices that are likely not meant.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import chain, count
from math import inf, isfinite
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np

from ag.autograd.operands import to_buffer
from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, tree_leaves
from ag.data.dataloader import DataLoader
from ag.engine.device import ag_default_device, ag_dtype, backend_of, canonical, cards, is_accelerator, was_named
from ag.engine.dtype import F32
from ag.engine.primitive import Array
from ag.engine.registry import say_once
from ag.engine.shape import counts
from ag.errors import CheckpointError, DtypeError, ShapeError
from ag.io.safetensors_file import absolute
from ag.log import Forgiving, log, shows_bars, write_line
from ag.nn.layer import Layer, state_of, trained_or_frozen
from ag.nn.mode import modes_kept, objects_in
from ag.nn.summaries import summary
from ag.ops.creation import ag_cast, ag_to_device
from ag.optim.optimizer import Optimizer
from ag.parallel.comm.comm import Json
from ag.parallel.trainer.callbacks import DPStep, Stateful
from ag.parallel.trainer.checkpoint import load_state
from ag.parallel.trainer.dp_train import check_devices, dp_train
from ag.parallel.trainer.host_optimizer import optimizer_for, schedule_for
from ag.parallel.trainer.samples import LoaderSample, checksum, input_of, refuse_unweighted
from ag.training.callbacks import Callback, History, Run, label_of
from ag.training.evaluation import Data, Leaves, Loss, Trained, check_model, device_of, loss_for, means_of, why_no_mean
from ag.training.metrics import Mean, Metric, named_metrics

if TYPE_CHECKING:
    from tqdm.auto import tqdm

_PRECISIONS = ("f32", "f16", "bf16")
_LOOKED_AT, _FAR = 1000, 1e3  # samples; how far apart the scales of features may be, and how large one
_PLENTY = 1000  # times the bytes of a batch and of what parameters have: no network computes as much
_STATE = ": "  # in a checkpoint, between a callback and the name of a part of its state
_INNER = ("dp_train: ", "ag_dataloader: ", "fit: ")  # functions that others call


class _ReplicaModels:
    """Models for `dp_train` to begin with: the model itself, and copies of it."""

    def __init__(self, model: Trained, devices: Sequence[str] | None, precision: str | None) -> None:
        if not model.parameters() and trained_or_frozen(model):
            raise ValueError("fit: all parameters of the model are frozen, so there is nothing to train; call "
                             "unfreeze() of the model, or of one of its layers.")
        check_devices("fit", devices)
        self._model, self._gives_own = model, True
        self.devices = [device_of(model)] if devices is None else [canonical(name) for name in devices]
        if precision not in (None, *_PRECISIONS):
            raise ValueError(f"fit: precision is {precision!r:.60}; use {', '.join(map(repr, _PRECISIONS))}, or "
                             f"None for the model's own.")
        odd = [f"{name} is {p.dtype}" for name, p in model.parameters().items() if precision and p.dtype != "f32"]
        if odd:
            raise DtypeError(f"fit: precision is {precision!r}, and the parameter {odd[0]}; it is for models in "
                             f"float32. Leave it out: a model of another type trains in that.")
        self._precision = "" if precision is None or precision == "f32" else precision
        self._masters: dict[str, Array] = {}  # the weights in float32
        self._cast: dict[str, Tensor] = {}  # parameters of the model itself, frozen ones too
        self.optimizers: list[Optimizer] = []

    def make(self) -> Trained:
        """Return the model of the next replica, on the default device: first the model itself, then copies."""
        model = self._model if self._gives_own else copy.deepcopy(self._model)
        self._gives_own = False
        with no_grad():
            for x in objects_in(model):  # also tensors that are no state
                if isinstance(x, Tensor) and x.device != ag_default_device():
                    x.rebind(ag_to_device(x, ag_default_device()).buffer)
            for name, p in trained_or_frozen(model).items() if self._precision else ():
                self._masters.setdefault(name, p.numpy())
                if model is self._model:
                    self._cast[name] = p
                p.rebind(ag_cast(p, self._precision).buffer)
        return model

    def owns(self, made: Optimizer | Sequence[Optimizer]) -> Optimizer | Sequence[Optimizer]:
        """Note the optimizers that were made, and let them begin with the weights in float32."""
        self.optimizers[:] = made if isinstance(made, Sequence) else [made]
        for optimizer in self.optimizers if self._precision else ():
            optimizer.load_state_dict({**optimizer.state_dict(), **{
                f"master.{own}": self._masters[str(p.name)] for own, p in optimizer.params.items()}})
        return made

    @contextmanager
    def in_precision(self) -> Iterator[None]:
        """Compute in 16 bits, if that is asked for; the model has its weights in float32 afterwards."""
        try:
            with ag_dtype(self._precision) if self._precision else nullcontext():
                yield
        finally:
            for optimizer in self.optimizers if self._precision else ():
                state = optimizer.state_dict()
                self._masters |= {str(p.name): state[f"master.{own}"] for own, p in optimizer.params.items()}
            for name, p in self._cast.items():
                p.rebind(to_buffer(self._masters[name].reshape(p.shape), p.buffer.backend, F32))


def fit(model: Trained, train: object, valid: object = None, epochs: int = 10, loss: Loss | str | None = None,
        metrics: object = None, callbacks: Sequence[Callback] | Callback | None = (), *, batch_size: int | None = None,
        lr: float = 1e-3, optimizer: Callable[[dict[str, Tensor]], Optimizer | Sequence[Optimizer]] | str | None = None,
        scheduler: Callable[[Optimizer], object] | str | None = None, shuffle: bool = True, seed: int | None = None,
        devices: Sequence[str] | None = None, leaf: int | None = None, balance: str | Sequence[float] = "equal",
        max_norm: float = inf, on_nonfinite: str = "raise", capture: bool | str = "auto",
        checkpoint: str | os.PathLike[str] | None = None, resume: bool = False, verbose: bool = True,
        sample_weight: object = None, class_weight: object = None, accumulate: int = 1,
        precision: str | None = None) -> History:
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
        What the model is measured with after every epoch; ``(X, y, sample_weight)`` for a weighted loss.
    epochs : int, optional
        Passes over the samples.
    loss : callable or str, optional
        "cross_entropy", "mse", "l1", "huber", "bce_with_logits" (for one output per question), or
        ``loss(output, target)``: a tensor of one element, the mean over the samples of a batch.  Default:
        "cross_entropy" where targets are class ids or distributions of whole numbers, such as one-hot vectors,
        otherwise "mse".  Other whole numbers in the shape of the outputs are refused.
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
        Learning rate of Adam, or of an optimizer that is named; one that is made has its own.
    optimizer : callable or str, optional
        "adam", "adamw", "sgd", or ``optimizer(params)``, as ``lambda p: ag.optim.SGD(p, lr=0.1)``, or a list of some.
    scheduler : callable or str, optional
        "cosine" (falls to 0), "step" (a tenth after each third), "warmup" (rises for a tenth of the steps, then falls
        to 0), the class of one, or ``scheduler(optimizer)``: an object with ``step()``, called after every step.
    shuffle : bool, optional
        Take the samples of every epoch in a new order, which follows from the seed.
    seed : int, optional
        Call `ag_seed` with it first.
    devices : sequence of str, optional
        Where to train; default: the device on which the model is.  With others the model moves to the first of them.
    leaf : int, optional
        How many samples are passed at once; default: those of a batch, shared out among the devices.
    balance, max_norm, on_nonfinite, capture : optional
        As of `dp_train`; an infinite loss that is skipped is not in the mean.  By default it is a FloatingPointError,
        like a gradient that is not finite, and the weights are those before the step.
    checkpoint : path, optional
        File to write the state of the training to, after every epoch, at the end and after Ctrl-C.  A CheckpointError
        says that it cannot be read or written, or belongs to another training.
    resume : bool, optional
        Go on from `checkpoint` if that file exists; `epochs` counts those done before, too.  A scheduler that is named
        goes on as one for all of them.  Without `resume` a file that is there is replaced.
    verbose : bool, optional
        Show a bar for every epoch, or a line where there is no screen.
    sample_weight : array_like of shape (samples,), optional
        What each sample of `train` counts beside the others: 2 is as much as the sample twice, 0 as none.  A loss of
        your own gets those of its samples as ``loss(output, target, sample_weight)``, and is their weighted mean.
    class_weight : "balanced" or dict of class to float, optional
        What samples of each class count, times `sample_weight`; "balanced": all classes the same.  Of ids in memory.
    accumulate : int, optional
        Passes for each step of a device: a `leaf` so many times smaller, for less memory.
    precision : {"f32", "f16", "bf16"}, optional
        Train a float32 model with parameters in 16 bits, from and to weights in float32.  It has the latter
        afterwards, and those in 16 bits in callbacks.

    Returns
    -------
    History
        ``history["loss"]``, ``history["val_loss"]`` and so on, a number per epoch, and ``history.plot()``.

    Notes
    -----
    Arrays have their samples on the first axis here, and ag's tensors on the last: a batch of ``X`` of shape
    (n, features) reaches the model, the loss and the metrics as (features, batch), one of images
    (n, channels, height, width) as (channels, height, width, batch).

    The model trains in train mode, is measured in eval mode, and has its own modes afterwards.  ``history["loss"]`` is
    the mean of the losses in training.  Metrics are measured after the epoch: with `valid`, as ``val_...``, or else
    with the training samples.  All means are over samples, whatever the sizes of batches.

    For the same `batch_size` and `leaf`, any number of like devices gives the same weights to the bit, and so does a
    resumed training.  Batch norm in train mode is over a leaf.

    A second call goes on with the weights, and begins with a new optimizer.  After Ctrl-C the history has the epochs
    that were finished, and ``interrupted`` is set; before the first step it is raised.

    Examples
    --------
    >>> import ag, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    >>> y = (X[:, 0] > X[:, 1]).astype(int)
    >>> list(ag.fit(ag.nn.Linear(2, 2), (X, y), (X, y), epochs=3, metrics=["accuracy"], verbose=False))
    ['loss', 'val_loss', 'val_accuracy', 'lr']
    """
    x = train[0] if isinstance(train, tuple) and train else train
    with in_the_name_of("fit", x):
        check_model("fit", model, batch_size)
        for name, value in (("shuffle", shuffle), ("resume", resume), ("verbose", verbose)):
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError(f"fit: {name} is {value!r:.60}; True or False is required.")
        if not counts(epochs, least=0):
            raise ValueError(f"fit: epochs is {epochs!r:.60}; a whole number of at least 0 is required.")
        if not (leaf is None or counts(leaf)) or not counts(accumulate) or (leaf is not None and accumulate > 1):
            raise ValueError(f"fit: leaf is {leaf!r:.60} and accumulate {accumulate!r:.60}; give one of them, a whole "
                             f"number of at least 1, and leave the other out (leaf=None, accumulate=1).")
        if resume and checkpoint is None:
            raise ValueError("fit: resume was given without checkpoint; name the file.")
        make_optimizer = optimizer_for("fit", optimizer, lr=lr)
        if isinstance(make_optimizer, Optimizer) or not callable(make_optimizer):
            raise TypeError(f"fit: optimizer is a {type(optimizer).__name__}; a name, or a function that makes one, is "
                            f"required, such as lambda params: ag.optim.SGD(params, lr=0.1).")
        if not (optimizer is None or isinstance(optimizer, str)) and lr != 1e-3:  # the default is nobody's choice
            raise ValueError(f"fit: lr is {lr!r:.60} and optimizer is given, which has a rate of its own; write it "
                             f"there, as in optimizer=lambda params: ag.optim.SGD(params, lr=0.1).")
        checkpoint = absolute(checkpoint)  # callbacks may change the folder
        measured, called = named_metrics("fit", metrics), callbacks_of("fit", callbacks)
        replicas = _ReplicaModels(model, devices, precision)
        data = Data(train, "fit: train", batch_size, shuffle=bool(shuffle), sample_weight=sample_weight,
                    class_weight=class_weight)
        source, name = (train, "fit: train") if valid is None else (valid, "fit: valid")
        held = Data(source, name, None if isinstance(source, DataLoader) else batch_size, whole=True)
        if data.count == held.count and all(hasattr(given, "__array__") or (  # Keras' fit(X, y) would fit X to itself
                isinstance(given, list) and not isinstance(given[0], (tuple, Mapping))) for given in (train, valid)):
            raise TypeError(f"fit: train and valid are arrays of {data.count} samples each, without targets; targets "
                            f"belong to train. Write fit(model, (X, y)), or (X, X) where the inputs are the targets.")
        loop = Epochs(model, data, loss_for("fit", loss, data), held, valid is not None, measured, int(epochs),
                      [*called, *([_Progress()] if verbose else [])])
        loop.run.optimizers = replicas.optimizers
        if data.weights is not None or held.weights is not None:
            refuse_unweighted("fit", loop.loss)
        if devices is None:
            _tell_of_devices(replicas.devices[0], any(p.dtype == "f64" for p in model.parameters().values()))
        _tell_of_scales(x)
        if loss is None and isinstance(train, tuple):
            _tell_of_binary(data.targets())
        size = leaf or -(-data.batch_size // (len(replicas.devices) * accumulate))
        with closing(data), closing(held), modes_kept(model):
            told = [] if data.shuffles else ["in one order"]
            told += [] if data.weights is None else [f"with sample_weight={checksum(data.weighed)}"]
            told += [f"with precision={precision!r}"] if precision not in (None, "f32") else []
            steps = loop.steps_of(checkpoint if resume else None, size, "".join(f", {text}" for text in told))
            leaves = Leaves(data, size, steps)
            if leaves.each > 1 and callable(loss) and (reason := why_no_mean(model, held, loop.loss)) is not None:
                log.warning("fit: %s It is given %d samples at a time, so results depend on leaf, accumulate and the "
                            "number of devices.", reason, size)
            if held.in_memory:
                _tell_of_memory(model, input_of(held.take(range(1))), size, replicas.devices[0])
            with loop.told(), replicas.in_precision():
                result = dp_train(
                    replicas.make, cast(Sequence[LoaderSample], leaves), loop.loss, n_iter=steps,
                    max_norm=max_norm, verbose=False, devices=replicas.devices,
                    optimizer=lambda params: replicas.owns(make_optimizer(params)),
                    scheduler=schedule_for("fit", scheduler, epochs * data.steps), batch=leaves.each, stack=1,
                    shuffle=False, weight_fn=Leaves.weight if leaves.each > 1 or data.weights is not None else None,
                    seed=seed, balance=balance, on_nonfinite=on_nonfinite, capture=capture, checkpoint=checkpoint,
                    checkpoint_every=None if checkpoint is None else data.steps, resume=bool(resume), callback=loop)
                theirs = {} if result.model is model else state_of(result.model)  # if the model's own device was lost
                for name, x in state_of(model).items() if theirs else ():
                    x.rebind(theirs[name].buffer)
                loop.run.model, loop.run.history.interrupted = model, result.interrupted
        return loop.run.history


def callbacks_of(function: str, given: object) -> list[Callback]:
    listed = [] if given is None else [*given] if isinstance(given, (list, tuple)) else [given]
    for odd in listed:
        if not isinstance(odd, Callback):
            such = f"{odd.__name__}()" if isinstance(odd, type) else "ag.training.EarlyStopping()"
            raise TypeError(f"{function}: callbacks is {odd!r:.60}, or has it in it; a list of ag.training.Callback "
                            f"objects is required, such as [{such}].")
    return cast(list[Callback], listed)


@contextmanager
def in_the_name_of(function: str, given: object) -> Iterator[None]:
    """Let errors of inner functions begin with the one that was called, and say how images have to be given."""
    try:
        yield
    except Exception as error:
        said = next((x for x in error.args[:1] if isinstance(x, str)), "")
        if said.startswith(_INNER):
            error.args = (f"{function}: {said.partition(': ')[2]}", *error.args[1:])
        for i, note in enumerate(notes := getattr(error, "__notes__", [])):
            notes[i] = f"{function}: {note.partition(': ')[2]}" if note.startswith(_INNER) else note
        shape = tuple(getattr(given, "shape", ()))
        if isinstance(error, ShapeError) and ("conv" in said or "pool" in said) and (
                len(shape) == 3 or (len(shape) == 4 and shape[-1] <= 4)):
            write = "X[:, None]" if len(shape) == 3 else "np.moveaxis(X, -1, 1)"
            raise ShapeError(f"{function}: X is {shape}: images are given as (n, channels, height, width); write "
                             f"{write}. ({said.rstrip('.')}.)") from error
        raise


def _tell_of_devices(device: str, of_64_bits: bool) -> None:
    """Log once if there are cards that the training does not use, though nobody named a device."""
    there = [] if was_named() else cards()
    if of_64_bits:
        if any(map(is_accelerator, there)):
            say_once(f"fit: the training is on {device}, as the model is in float64, which cards do not hold; "
                     f"make it in float32 for {there[0]}, under ag.ag_dtype('f32').")
    elif there and device not in there:
        say_once(f"fit: the training is on {device}, where the model is, and {there[0]} is there; write devices="
                 f"{there[:1]}, or ag.ag_device('auto') before the model is made.")
    elif len(there) > 1:
        say_once(f"fit: the training is on {device} alone; devices={there} uses all.")


def _tell_of_binary(targets: object) -> None:
    """Log once if floats that are all 0 or 1 are trained by mean squares."""
    some = targets[..., :_LOOKED_AT] if isinstance(targets, np.ndarray) else np.zeros(0)
    if some.dtype.kind == "f" and some.size > 1 and np.isin(some, (0, 1)).all():
        say_once("fit: the targets are 0.0 and 1.0, and the loss is the mean squared error. For classes write "
                 "loss='bce_with_logits', or give whole numbers and a model with an output for each class.")


def _tell_of_scales(given: object) -> None:
    """Log once if features in an array of floats have scales that networks train badly with."""
    columns = list(getattr(given, "columns", ()))
    is_table = getattr(given, "ndim", 0) == 2
    x = np.asarray(cast(Sequence[object], given)[:_LOOKED_AT]) if is_table else np.zeros(0)
    if x.dtype.kind != "f" or not x.size:
        return
    with np.errstate(all="ignore"):
        sizes = np.nanmax(np.abs(np.where(np.isfinite(x), x, 0)), 0)
    largest, least = int(sizes.argmax()), int(np.where(sizes > 0, sizes, np.inf).argmin())
    if sizes[largest] > _FAR or sizes[largest] > _FAR * sizes[least]:
        name = f" ({columns[largest]!r})" if columns else ""
        say_once(f"fit: features have very different scales, or large ones: column {largest}{name} of X reaches "
                 f"{sizes[largest]:.0e}, column {least} {sizes[least]:.0e}. Networks train badly so; use "
                 f"sklearn.preprocessing.StandardScaler, or divide.")


def _tell_of_memory(model: Trained, x: Tree, samples: int, device: str) -> None:
    """Log once if passes of so many samples, of which `x` is one, are likely too large for the device."""
    # they keep all results, with a gradient for each, beside gradients and two moments of every parameter
    if not isinstance(model, Layer):
        return
    left, tensors = backend_of(device).arena.left(), model.named_tensors().values()
    needed = 3 * sum(t.buffer.nbytes for t in tensors if t.requires_grad)
    if left > _PLENTY * (needed + samples * sum(np.asarray(leaf).nbytes for leaf in tree_leaves(x))):
        return
    try:
        results = summary(model, x).total("memory") - sum(t.buffer.nbytes for t in tensors)
    except Exception:  # noqa: BLE001 - of whatever kind: training raises it again, where it is looked for
        return
    needed += 2 * samples * results
    if needed > left:
        say_once(f"fit: a step needs about {needed / 1e9:.2f} GB and {device} has {left / 1e9:.2f} GB left; give a "
                 f"smaller batch_size, accumulate=4 or more, or precision='bf16'. ag.memory() tells what uses it.")


class Epochs:
    """The epochs of one training: a callback of `dp_train` that measures, writes the history and calls the callbacks.

    `held` is measured after each, and `apart` says if that is not `data`.
    """

    def __init__(self, model: Trained, data: Data, loss: Loss, held: Data, apart: bool, metrics: Mapping[str, Metric],
                 epochs: int, callbacks: list[Callback]) -> None:
        self.loss = loss
        self._data, self._held, self._metrics, self._callbacks = data, held, metrics, callbacks
        self._names = {name: f"val_{name}" if apart else name for name in (*(["loss"] if apart else []), *metrics)}
        columns = ["loss", *self._names.values(), "lr"]
        self.run = Run(model, History(), epochs, data.steps, data.count, columns)
        self._dealt = ""  # how samples are dealt out to steps
        self._next = 0  # step
        self._losses: list[float] = []  # of the steps of this epoch
        self._told = 0  # callbacks of the last epoch
        self._since = perf_counter()

    def steps_of(self, checkpoint: str | os.PathLike[str] | None, leaf: int, told: str = "") -> int:
        """Return how many steps there are to be, with those of a checkpoint, whose epochs are taken over."""
        self._dealt = f"{self._data.count} samples in batches of {self._data.batch_size} and leaves of {leaf}{told}"
        steps = self.run.epochs * self._data.steps
        state = None if checkpoint is None else load_state(checkpoint)
        if state is None:
            return steps
        if "dealt" not in state.callback:
            raise CheckpointError(f"fit: {checkpoint} is a checkpoint of dp_train alone, which knows no epochs; go on "
                                  f"with dp_train, or name another file.")
        self.load_state_dict(state.callback)
        if not state.seen <= self._next <= state.step:
            raise CheckpointError(f"fit: {checkpoint} is at step {state.step}, and its epochs are at {self._next}; the "
                                  f"file is damaged. Use another one.")
        there = {name.partition(_STATE)[0] for name in state.callback if _STATE in name}
        here = {prefix.removesuffix(_STATE) for prefix, _ in self._stateful()}
        for label in sorted(here ^ there):
            log.warning("fit: the checkpoint has no state of the callback %s, which begins anew." if label in here else
                        "fit: the checkpoint has a state of %s, which is no longer among the callbacks.", label)
        if self.run.history.stopped is not None:
            log.warning("fit: the training in %s was stopped after epoch %d (%s), and does not go on.", checkpoint,
                        self.run.history.epochs, self.run.history.stopped)
            return state.step
        if state.step > steps:
            raise CheckpointError(f"fit: the checkpoint is in epoch {-(-state.step // self._data.steps)} and epochs is "
                                  f"{self.run.epochs}; epochs counts all, those done before too.")
        return steps

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell the callbacks of the beginning, and those of the end, in their order, also if one of them fails."""
        begun: list[Callback] = []
        try:
            for callback in self._callbacks:
                callback.on_train_begin(self.run)
                begun.append(callback)
            self._since = perf_counter()
            yield
        finally:
            with ExitStack() as ends:
                for callback in reversed(begun):
                    ends.callback(callback.on_train_end, self.run)

    def __call__(self, step: DPStep) -> bool:
        """Note a step, and return whether to go on."""
        run = self.run
        run.model = step.models[0]
        if step.step == self._next:  # otherwise it was noted before the interrupt
            self._losses.append(step.loss)
            self._next += 1
            run.seen += len(self._data.step(step.step))
            for callback in self._callbacks:
                callback.on_step_end(run, step.step, step.loss)
        if self._next % self._data.steps == 0:
            self._end_epoch()
        return run.history.stopped is None

    def _end_epoch(self) -> None:
        run = self.run
        if run.history.epochs * self._data.steps < self._next:
            mean = Mean()  # over the epoch's samples, without steps whose loss is not finite
            for k, loss in enumerate(self._losses, self._next - len(self._losses)):
                if isfinite(loss):
                    mean.add(loss, self._data.counted(k))
            row = {"loss": mean.value}
            if self._names:
                found = means_of("fit", run.model, self._held, self.loss, self._metrics)
                row |= {self._names[name]: value for name, value in found.items() if name in self._names}
            row["lr"] = run.optimizers[0].lr
            run.history.append(row)
            run.history.seconds.append(perf_counter() - self._since)
            self._losses, self._told, self._since, run.seen = [], 0, perf_counter(), 0
        while self._told < len(self._callbacks):
            self._callbacks[self._told].on_epoch_end(run)
            self._told += 1

    def state_dict(self) -> dict[str, Array | Json]:
        """Return what a checkpoint of `dp_train` must hold to go on, also in the middle of an epoch and of its end."""
        history = self.run.history
        return {
            "dealt": self._dealt, "next": self._next, "losses": self._losses, "told": self._told,
            "seen": self.run.seen, "columns": list(self.run.columns), "rows": history.rows,
            "seconds": history.seconds, "stopped": history.stopped,
            **{prefix + name: x for prefix, one in self._stateful() for name, x in one.state_dict().items()}}

    def load_state_dict(self, state: Mapping[str, Array | Json]) -> None:
        """Go on with the state of a checkpoint; refuse one that is damaged, or of another training."""
        columns, rows = state.get("columns"), state.get("rows")
        fits = {
            "dealt": isinstance(state.get("dealt"), str),
            "columns": isinstance(columns, list) and all(isinstance(name, str) for name in columns),
            "next": counts(state.get("next"), least=0), "told": counts(state.get("told"), least=0),
            "losses": _are_numbers(state.get("losses")), "seconds": _are_numbers(state.get("seconds")),
            "rows": isinstance(rows, list) and all(isinstance(row, dict) and [*row] == columns
                                                   and _are_numbers([*row.values()]) for row in rows),
            "stopped": state.get("stopped", 0) is None or isinstance(state.get("stopped"), str)}
        for name in (name for name, is_fit in fits.items() if not is_fit):
            what = f"{state[name]!r:.60}" if name in state else "missing"
            raise CheckpointError(f"fit: the checkpoint's {name} is {what}; the file is damaged. Use another one.")
        if state["dealt"] != self._dealt:
            raise CheckpointError(f"fit: the checkpoint was made with {state['dealt']}, and the training has "
                                  f"{self._dealt}; give the same.")
        if state["columns"] != list(self.run.columns):
            raise CheckpointError(f"fit: the checkpoint's history has {', '.join(state['columns'])}, and the training "
                                  f"{', '.join(self.run.columns)}; give valid and metrics as before.")
        told: Mapping[str, Json] = state
        rows, losses, seconds, steps = told["rows"], told["losses"], told["seconds"], self._data.steps
        if told["next"] != len(rows) * steps + len(losses) or len(losses) > steps or len(rows) != len(seconds):
            raise CheckpointError(f"fit: the checkpoint has next {told['next']} with {len(rows)} rows, {len(losses)} "
                                  f"losses and {len(seconds)} seconds, which do not go together. Use another file.")
        history = self.run.history
        self._next, self._told, self._losses = told["next"], told["told"], list(losses)
        self.run.seen = sum(len(self._data.step(k)) for k in range(self._next - len(losses), self._next))
        history.rows, history.seconds, history.stopped = [dict(row) for row in rows], list(seconds), told["stopped"]
        for prefix, callback in self._stateful():
            mine = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
            if mine:
                callback.load_state_dict(mine)

    def _stateful(self) -> list[tuple[str, Stateful]]:
        """Return the callbacks with a state, wherever they stand among others, and the beginning of its names."""
        found: dict[str, Stateful] = {}
        for callback in self._callbacks:
            if isinstance(callback, Stateful):
                label = label_of(callback, self.run)
                places = chain([label], (f"{label}, number {n}" for n in count(2)))
                found[next(place + _STATE for place in places if place + _STATE not in found)] = callback
        return [*found.items()]


def _are_numbers(given: object) -> bool:
    return isinstance(given, list) and all(type(x) is float or (type(x) is int and abs(x) < 1 << 53) for x in given)


class _Progress(Callback):
    """Show a bar per epoch, with the loss so far and the results of validation; lines without a screen."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None
        self._mean = Mean()
        self._began = self._until = perf_counter()
        self._before = 0  # samples of this epoch, in the training that is resumed
        self._shown = 0.0  # when the loss was written into the bar

    def on_train_begin(self, run: Run) -> None:
        self._mean, self._began, self._before = Mean(), perf_counter(), run.seen

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        if self._bar is None and shows_bars():
            from tqdm.auto import tqdm  # chooses a notebook's bar there, and takes long to import

            self._bar = tqdm(total=run.samples, initial=self._before, unit=" samples", leave=True,
                             desc=f"epoch {run.history.epochs + 1}/{run.epochs}", file=Forgiving(sys.stderr))
        size = run.seen - self._before - self._mean.count
        self._mean.add(loss, size)
        self._until = perf_counter()
        if self._bar is not None:
            self._bar.update(size)
            if perf_counter() - self._shown > 0.1:
                self._bar.set_postfix_str(f"loss={self._mean.value:.4g}", refresh=False)
                self._shown = perf_counter()

    def on_epoch_end(self, run: Run) -> None:
        numbers = {name: f"{value:.4g}" for name, value in run.history.rows[-1].items() if name != "lr"}
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(f"{name}={text}" for name, text in numbers.items()), refresh=True)
        elif not shows_bars():
            rate = self._mean.count / max(self._until - self._began, 1e-9)
            shown = ", ".join(f"{name} {text}" for name, text in numbers.items())
            write_line(f"epoch {run.history.epochs}/{run.epochs}: {shown}, {rate:,.0f} samples/s")
        self._end()

    def on_train_end(self, run: Run) -> None:
        self._end()
        if run.history.stopped:
            write_line(f"fit: stopped after epoch {run.history.epochs}: {run.history.stopped}.")

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._mean, self._began, self._before, self._shown = None, Mean(), perf_counter(), 0, 0.0
