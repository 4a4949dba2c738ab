"""Callbacks: they decide from the history of a `Run` alone, so they can be used again, and in a resumed training."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ag.engine.primitive import Array
from ag.engine.shape import Shape, counts
from ag.errors import CheckpointError
from ag.io.checkpoint import ag_save_model
from ag.io.safetensors_file import absolute, check_writable, read_regular, replace_file
from ag.log import log
from ag.names import missing
from ag.names.elsewhere import HISTORY
from ag.nn.layer import load_into, state_of
from ag.optim.optimizer import Optimizer
from ag.optim.settings import NOT_NEGATIVE, PART, whole
from ag.parallel.comm.comm import Json
from ag.training.evaluation import Axes, Trained, pyplot_for
from ag.training.metrics import more_is_better

__all__ = ["BestWeights", "CSVLog", "Callback", "EarlyStopping", "History", "Logger", "ModelCheckpoint",
           "ReduceLROnPlateau", "Run", "TensorBoard"]


class History(dict[str, list[float]]):
    """The numbers of every finished epoch: ``history["loss"]`` is a list, ``pandas.DataFrame(history)`` a table.

    Attributes
    ----------
    seconds : list of float
        The time of each epoch, with its validation.
    interrupted, stopped : bool, str or None
        Whether Ctrl-C ended the training, and the reason of a callback that did.

    Examples
    --------
    >>> len(ag.fit(ag.nn.Linear(1, 1), ([[0.0], [1.0]], [[0.0], [1.0]]), epochs=3, verbose=False)["loss"])
    3
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.interrupted = False
        self.stopped: str | None = None

    if not TYPE_CHECKING:
        __getattr__ = missing(HISTORY)

    @property
    def epochs(self) -> int:
        """Return the number of finished epochs."""
        return len(next(iter(self.values()), ()))

    @property
    def rows(self) -> list[dict[str, float]]:
        """Return the numbers of each epoch, by name."""
        return [dict(zip(self, numbers, strict=True)) for numbers in zip(*self.values(), strict=True)]

    @rows.setter
    def rows(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.clear()
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, float]) -> None:
        """Add the numbers of an epoch, all or none."""
        self.update({name: [*self.get(name, ()), value] for name, value in row.items()})

    def __missing__(self, name: str) -> list[float]:
        why = f"; it has {', '.join(self)}" if self else ", as no epoch was finished"
        raise KeyError(f"History: there is no {name!r}{why}.")

    def __repr__(self) -> str:
        last = ", ".join(f"{name}={value:.6g}" for name, value in self.rows[-1].items()) if self.rows else "none"
        ended = ", interrupted" if self.interrupted else f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({self.epochs} epochs{ended}; last: {last})"

    def plot(self, *names: str) -> list[Axes]:
        """Draw the columns `names`, by default all but the learning rate, over epochs, and return matplotlib's axes.

        The loss and each metric have a picture, of training and validation, in a new figure of pyplot.
        """
        pyplot = pyplot_for("History.plot")
        shown = {name: self[name] for name in names or [name for name in self if name != "lr"]}
        about = list(dict.fromkeys(name.removeprefix("val_") for name in shown)) or ["loss"]
        _, (places,) = pyplot.subplots(1, len(about), squeeze=False, figsize=(4.8 * len(about), 3.6),
                                       layout="constrained")
        for place, title in zip(places, about, strict=True):
            for name, label in ((title, "training"), (f"val_{title}", "validation")):
                if name in shown:
                    place.plot(range(1, self.epochs + 1), shown[name], marker=".", label=label)
            place.set(title=title.replace("_", " "), xlabel="epoch")
            place.xaxis.get_major_locator().set_params(integer=True)
            place.legend()
        return list(places)


class Run:
    """A training, as callbacks see it.

    Attributes
    ----------
    model : Layer or object
        With the weights of the last step.
    optimizers : list of Optimizer
        Those of the training, whose ``lr`` may be set between steps.
    history : History
        Of the epochs so far.
    epochs, steps, samples, seen : int
        How many epochs there will be, steps and samples in each, and samples of this epoch so far.
    columns : tuple of str
        The columns of `history`, also before the first epoch.

    Examples
    --------
    >>> class Halve(ag.training.Callback):
    ...     def on_epoch_end(self, run):
    ...         run.optimizers[0].lr /= 2
    """

    def __init__(self, model: Trained, history: History, epochs: int, steps: int, samples: int,
                 columns: Sequence[str]) -> None:
        self.model, self.history = model, history
        self.optimizers: list[Optimizer] = []
        self.seen = 0
        self.epochs, self.steps, self.samples, self.columns = epochs, steps, samples, tuple(columns)

    def stop(self, why: str) -> None:
        """End the training after this step, or this epoch; `why` is for `History.stopped`."""
        self.history.stopped = why


class Callback:
    """The base of callbacks: derive one, and define what you need.

    One with `state_dict` and `load_state_dict`, of arrays, numbers and strings by name, is part of checkpoints.

    Examples
    --------
    >>> class Printer(ag.training.Callback):
    ...     def on_epoch_end(self, run):
    ...         print(run.history.epochs, run.columns)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hooks = [name for name in vars(Callback) if name.startswith("on_")]
        for name in dir(cls):
            if name.startswith("on_") and name not in hooks and callable(getattr(cls, name)):
                raise TypeError(f"{cls.__name__}: {name} is no hook and would never be called; there are "
                                f"{', '.join(hooks)}. Use one of them, or a name that does not begin with on_.")

    def on_train_begin(self, run: Run) -> None:
        """Run before the first step, of a resumed training too."""

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        """Run after every step; `step` counts from 0 through all epochs, `loss` is that of the step."""

    def on_epoch_end(self, run: Run) -> None:
        """Run after every epoch, when its row is in the history."""

    def on_train_end(self, run: Run) -> None:
        """Run when training is over, also after Ctrl-C or an error."""


class _Watching(Callback):
    """A callback that watches one column of the history."""

    def __init__(self, monitor: str | None, mode: str, patience: int = 1, min_delta: float = 0.0) -> None:
        self._function = type(self).__name__
        self.patience = whole(self._function, "patience", patience)
        self.min_delta = NOT_NEGATIVE(self._function, "min_delta", min_delta)
        if not (monitor is None or isinstance(monitor, str)):
            raise TypeError(f"{self._function}: monitor is {monitor!r:.60}; name a column, such as 'val_loss'.")
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"{self._function}: mode is {mode!r:.60}; use 'auto', 'min' or 'max'.")
        self.monitor, self.mode = monitor, mode

    def on_train_begin(self, run: Run) -> None:
        self._sign(run)  # there must be such a column

    def _column(self, run: Run) -> str:
        name = self.monitor or ("val_loss" if "val_loss" in run.columns else "loss")
        if name not in run.columns:
            raise ValueError(f"{self._function}: monitor is {name!r}, and the history will have "
                             f"{', '.join(run.columns)}; name one of these.")
        return name

    def _sign(self, run: Run) -> float:
        """Return the factor that makes larger values better."""
        name = self._column(run)
        if self.mode != "auto":
            return 1.0 if self.mode == "max" else -1.0
        if (more := more_is_better(name)) is not None:
            return 1.0 if more else -1.0
        raise ValueError(f"{self._function}: monitor is {name!r}, of unknown direction; give mode='max' or 'min'.")

    def _best(self, run: Run) -> int | None:
        """Return the number of the best epoch, from 0; a later one must be better by more than `min_delta`."""
        sign, best = self._sign(run), None
        for i, value in enumerate(run.history.get(self._column(run), ())):
            if isfinite(value) and (best is None or sign * value > best[1] + self.min_delta):
                best = i, sign * value
        return None if best is None else best[0]


def label_of(callback: Callback, run: Run) -> str:
    """Return the callback's name in checkpoints, the same when the training is resumed."""
    watched = isinstance(callback, _Watching) and f" of {'max' if callback._sign(run) > 0 else 'min'} " + (
        callback._column(run))
    return f"{type(callback).__name__}{watched or ''}"


class EarlyStopping(_Watching):
    """Stop when a column of the history has not become better for some epochs.

    Reference: Keras ``EarlyStopping``.

    Parameters
    ----------
    patience : int, optional
        After how many epochs in a row without a better one the training ends: with 2, losses of 5, 3, 4, 3 end it.
    min_delta : float, optional
        By how much an epoch must be better to count.
    monitor : str, optional
        Column of the history; default: ``"val_loss"``, or ``"loss"`` without validation.
    mode : {"auto", "min", "max"}, optional
        Whether less or more is better; "auto" knows it of the metrics that have names.

    Examples
    --------
    >>> callback = ag.training.EarlyStopping(patience=3, monitor="val_accuracy")
    """

    def __init__(self, patience: int = 5, min_delta: float = 0.0, monitor: str | None = None,
                 mode: str = "auto") -> None:
        super().__init__(monitor, mode, patience, min_delta)

    def on_epoch_end(self, run: Run) -> None:
        best = self._best(run)
        since = run.history.epochs - (0 if best is None else best + 1)
        if since >= self.patience:
            name = self._column(run)
            run.stop(f"{name} did not become better for {since} epochs" + (
                "" if best is None else f"; the best was {run.history[name][best]:.6g}, in epoch {best + 1}"))


class BestWeights(_Watching):
    """Keep the weights and buffers of the best epoch, and give them to the model when training is over.

    Of equal epochs the first is the best.  The weights are restored after Ctrl-C and after an error, too.  A checkpoint
    holds them for the callback that watches the same column.
    Reference: Keras ``ModelCheckpoint(save_best_only=True)`` and ``EarlyStopping(restore_best_weights=True)``.

    Parameters
    ----------
    monitor, mode : str, optional
        As of `EarlyStopping`.
    path : path, optional
        Also save the model there whenever it is the best so far, as `ag_save_model` does.

    Attributes
    ----------
    epoch : int or None
        The best one, from 1; None if no epoch has had a finite value.

    Examples
    --------
    >>> callback = ag.training.BestWeights(monitor="val_accuracy")
    """

    def __init__(self, monitor: str | None = None, mode: str = "auto",
                 path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(monitor, mode)
        self.path = self._file = path  # as given, and where that is when training begins
        self.epoch: int | None = None
        self._weights: dict[str, Array] = {}
        self._shapes: dict[str, Shape] | None = None  # of the model, once training has begun

    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        self._file = absolute(self.path)
        if self._file is not None:
            check_writable(self._file, "BestWeights")
        self.epoch, self._weights = None, {}
        self._shapes = {name: x.shape for name, x in state_of(run.model).items()}

    def on_epoch_end(self, run: Run) -> None:
        best = self._best(run)
        if best is not None and best + 1 == run.history.epochs:
            weights = {name: x.numpy() for name, x in state_of(run.model).items()}
            for optimizer in run.optimizers:  # of 16-bit weights those in float32, from which `precision` goes on
                state = optimizer.state_dict()
                weights |= {str(p.name): state[f"master.{own}"].reshape(p.shape) for own, p in optimizer.params.items()
                            if f"master.{own}" in state and str(p.name) in weights}
            self.epoch, self._weights = best + 1, weights
            if self._file is not None:
                ag_save_model(run.model, self._file)

    def on_train_end(self, run: Run) -> None:
        if self.epoch is not None:
            load_into(state_of(run.model), self._weights, source="BestWeights: the best weights")
        elif run.history.epochs:
            best = self._best(run)
            log.warning("BestWeights: %s %s, so the model keeps its last weights.", self._column(run),
                        "was never a finite number" if best is None else
                        f"was best in epoch {best + 1}, of which the checkpoint had no weights")

    def state_dict(self) -> dict[str, Array | Json]:
        """Return the best epoch and its weights."""
        return {"epoch": self.epoch, **{f"weight.{name}": x for name, x in self._weights.items()}}

    def load_state_dict(self, state: Mapping[str, Array | Json]) -> None:
        """Go on with these; raise CheckpointError if they are damaged, or of another model."""
        epoch: Json = state.get("epoch")
        weights = {name.removeprefix("weight."): x for name, x in state.items() if isinstance(x, np.ndarray)}
        if not (epoch is None or counts(epoch)):
            raise CheckpointError(f"BestWeights: the checkpoint's epoch is {epoch!r:.60}; a whole number of at least 1 "
                                  f"is required, or None. Go on with an older checkpoint.")
        if epoch is not None and self._shapes not in (None, {name: x.shape for name, x in weights.items()}):
            raise CheckpointError("BestWeights: the best weights in the checkpoint do not fit the model; give the "
                                  "model that was trained, or an older checkpoint.")
        self.epoch, self._weights = epoch, weights


class ReduceLROnPlateau(_Watching):
    """Multiply the learning rate by a factor when a column of the history has not become better for some epochs.

    A schedule sets the rate after every step, so use one of both.
    Reference: Keras ``ReduceLROnPlateau``.

    Parameters
    ----------
    factor : float, optional
        At least 0 and below 1.
    patience : int, optional
        After how many epochs in a row without a better one the rate is reduced, and after how many more again.
    monitor, mode, min_delta : optional
        As of `EarlyStopping`.
    cooldown, min_lr : optional
        The ``cooldown - 1`` epochs after each reduction do not count, and the rate is not reduced below `min_lr`.

    Examples
    --------
    >>> callback = ag.training.ReduceLROnPlateau(factor=0.5, patience=3)
    """

    def __init__(self, factor: float = 0.1, patience: int = 10, monitor: str | None = None, mode: str = "auto",
                 min_delta: float = 1e-4, cooldown: int = 0, min_lr: float = 0.0) -> None:
        super().__init__(monitor, mode, patience, min_delta)
        self.factor = PART(self._function, "factor", factor)
        self.cooldown = whole(self._function, "cooldown", cooldown, 0)
        self.min_lr = NOT_NEGATIVE(self._function, "min_lr", min_lr)
        self._rates: list[float] = []  # that were set last

    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        self._rates = []

    def on_epoch_end(self, run: Run) -> None:
        if self._rates and self._rates != [optimizer.lr for optimizer in run.optimizers]:
            self._rates = []
            log.warning("ReduceLROnPlateau: something else, such as a scheduler of fit, has set the learning rate "
                        "since it was reduced; leave one of both out.")
        if self._is_due(run):
            for optimizer in run.optimizers:
                optimizer.lr = max(optimizer.lr * self.factor, min(self.min_lr, optimizer.lr))
            self._rates = [optimizer.lr for optimizer in run.optimizers]

    def _is_due(self, run: Run) -> bool:
        """Return whether the last epoch of the history is one after which the rate is reduced."""
        sign, best, waited, cooling, due = self._sign(run), -np.inf, 0, 0, False
        for value in run.history[self._column(run)]:
            cooling, due = max(0, cooling - 1), False
            if isfinite(value) and sign * value > best + self.min_delta:
                best, waited = sign * value, 0
            elif not cooling:
                waited += 1
                if waited >= self.patience:
                    waited, cooling, due = 0, self.cooldown, True
        return due


class ModelCheckpoint(Callback):
    """Save the model after every epoch, or every few, to files of its own.

    `BestWeights` saves the best epoch.  ``fit(checkpoint=..., resume=True)`` is for going on after an interruption.
    Reference: Keras ``ModelCheckpoint``.

    Parameters
    ----------
    path : path
        Name of a file, as `ag_save_model` writes it.  ``{epoch}``, from 1, and columns of the history are replaced by
        their numbers, as in ``"model-{epoch:03}-{val_loss:.3f}.safetensors"``.
    every, keep : int, optional
        After how many epochs, and how many files to keep: older ones of this training are deleted.  Default: all.

    Examples
    --------
    >>> callback = ag.training.ModelCheckpoint("model-{epoch}.safetensors", every=5, keep=2)
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 1, keep: int | None = None) -> None:
        self.path, self.every = _path("ModelCheckpoint", "path", path), whole("ModelCheckpoint", "every", every)
        self.keep = None if keep is None else whole("ModelCheckpoint", "keep", keep)
        self._folder = "."  # where a relative path begins

    def on_train_begin(self, run: Run) -> None:
        self._folder = absolute(".")
        check_writable(self._file(1, dict.fromkeys(run.columns, 0.0)), "ModelCheckpoint")

    def on_epoch_end(self, run: Run) -> None:
        if run.history.epochs % self.every:
            return
        rows = [*enumerate(run.history.rows, 1)][self.every - 1 :: self.every]
        files = [self._file(epoch, row) for epoch, row in rows]
        ag_save_model(run.model, files[-1])
        for old in {*files[: -self.keep]} - {*files[-self.keep :]} if self.keep else ():
            Path(old).unlink(missing_ok=True)

    def _file(self, epoch: int, row: Mapping[str, float]) -> str:
        try:
            return os.path.join(self._folder, self.path.format(epoch=epoch, **row))
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError(f"ModelCheckpoint: path is {self.path!r}, and no name can be made of it ({error!r}); it "
                             f"may have {{epoch}} in it, and {', '.join(map('{{{}}}'.format, row))}.") from error


def _path(function: str, name: str, given: object) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{function}: {name} is {given!r:.60}; a {name.replace('path', 'file')}'s name is required.")
    return os.fspath(given)


class CSVLog(Callback):
    """Write the history to a CSV file, a row per epoch: ``epoch``, from 1, ``seconds``, and the columns of the history.

    Rows are on the disk when their epoch is over; of a resumed training the file has all epochs.

    Parameters
    ----------
    path : path
        A file that is there is replaced, unless `append`.
    append : bool, optional
        Go on with a file that is there; one with other columns is a CheckpointError when training begins.

    Examples
    --------
    >>> callback = ag.training.CSVLog("log.csv", append=True)
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path, self.append = Path(_path("CSVLog", "path", path)), bool(append)
        self._file = self.path  # where that is when training begins
        self._before: list[str] = []

    def on_train_begin(self, run: Run) -> None:
        names = ["epoch", "seconds", *run.columns]
        self._file = Path(absolute(self.path))
        before: list[str] = []
        if self.append and self._file.exists():
            try:
                before = read_regular(self._file).decode().replace("\r\n", "\n").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"CSVLog: {self.path} cannot be read ({error}); give another file, or "
                                      f"append=False.") from error
            before = before[:-1] if before[-1] == "" else before
        try:
            columns = next(csv.reader(before[:1]), None)
        except csv.Error:
            columns = []
        if before and columns != names:
            raise CheckpointError(f"CSVLog: {self.path} has the columns {before[0]:.200} and the training "
                                  f"{','.join(names)}; give another file, or append=False.")
        if rows := self._rows(run):  # of a resumed training, which are written anew
            places = [i for i in range(len(before)) if before[i : i + len(rows)] == rows]
            before = before[: places[-1]] if places else before
        self._before = before or [",".join(names)]
        self.on_epoch_end(run)

    def on_epoch_end(self, run: Run) -> None:
        replace_file(self._file, lambda: "\n".join([*self._before, *self._rows(run), ""]).encode(), "CSVLog")

    def _rows(self, run: Run) -> list[str]:
        return [",".join([str(i), f"{seconds:.3f}", *(repr(row[name]) for name in run.columns)])
                for i, (row, seconds) in enumerate(zip(run.history.rows, run.history.seconds, strict=True), 1)]


class Logger(Callback):
    """Give the numbers of a training to a function, such as that of another library.

    Parameters
    ----------
    function : callable
        ``function(numbers, step=step)``, such as ``wandb.log`` or ``mlflow.log_metrics``: after an epoch a dict with
        ``epoch``, from 1, and the columns of the history, and how many steps there were.
    every : int, optional
        Also give the loss of every so many steps, as ``step_loss``.

    Examples
    --------
    >>> import ag, numpy as np
    >>> log = ag.training.Logger(lambda numbers, step: print(step, *numbers))
    >>> history = ag.fit(ag.ag_linear(2, 2), (np.ones((4, 2)), [0] * 4), epochs=1, callbacks=log, verbose=False)
    1 epoch loss lr
    """

    def __init__(self, function: Callable[..., object], every: int | None = None) -> None:
        if not callable(function):
            raise TypeError(f"Logger: function is {function!r:.60}; a function such as wandb.log is required.")
        self.function, self.every = function, None if every is None else whole(type(self).__name__, "every", every)

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        if self.every is not None and (step + 1) % self.every == 0:
            self.function({"step_loss": loss}, step=step + 1)

    def on_epoch_end(self, run: Run) -> None:
        numbers = {"epoch": run.history.epochs, **run.history.rows[-1]}
        self.function(numbers, step=run.history.epochs * run.steps)


class TensorBoard(Logger):
    """Write event files that TensorBoard shows: the columns of the history, with the epoch, from 1, as the step.

    Parameters
    ----------
    folder, every : optional
        Where to, one folder per training; and as of `Logger`.

    Examples
    --------
    >>> callback = ag.training.TensorBoard("runs/first")
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs", every: int | None = None) -> None:
        super().__init__(self._write, every)
        self.folder = _path("TensorBoard", "folder", folder)
        self._writer: Any = None  # torch's or tensorboardX's

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def on_train_begin(self, run: Run) -> None:
        for module in ("tensorboardX", "torch.utils.tensorboard"):
            with suppress(ImportError):
                self._writer = import_module(module).SummaryWriter(absolute(self.folder))
                return
        raise ImportError("TensorBoard: there is no writer of event files; run `pip install tensorboardX`, or install "
                          "PyTorch and tensorboard.")

    def on_epoch_end(self, run: Run) -> None:
        self._write(run.history.rows[-1], run.history.epochs)
        self._writer.flush()

    def on_train_end(self, run: Run) -> None:
        self._writer.close()
