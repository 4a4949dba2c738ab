"""Callbacks: what happens between epochs besides training.

A callback decides from the history of its `Run` alone, so it can be used again, and a resumed training goes on with it.
More than numbers, such as the best weights, goes into checkpoints by `state_dict`.  Rows of logs are on the disk when
their epoch is over.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from math import isfinite, isnan
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ag.engine.primitive import Array
from ag.engine.shape import Shape, counts
from ag.errors import CheckpointError
from ag.io.model_file import ag_save_model
from ag.io.safetensors_file import absolute, check_writable, read_regular, replace_file
from ag.log import Forgiving, log, shows_bars, write_line
from ag.names import Making
from ag.nn.layer import load_into, state_of
from ag.optim.optimizer import Optimizer
from ag.optim.settings import number_or_nan
from ag.parallel.comm.comm import Json
from ag.training.evaluation import Mean, Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from tqdm.auto import tqdm

__all__ = ["BestWeights", "CSVLog", "Callback", "EarlyStopping", "History", "Run", "TensorBoard"]

# ---------------------------------------------------------------------------------------------- what callbacks see


class History(Mapping[str, list[float]]):
    """The numbers of every finished epoch, by name: ``history["loss"]`` is a list with one number per epoch.

    Attributes
    ----------
    rows : list of dict of str to float
        The same, a dict per epoch; ``pandas.DataFrame(history.rows)`` is a table.
    seconds : list of float
        The time of each epoch, with its validation.
    interrupted : bool
        Whether Ctrl-C ended the training.
    stopped : str or None
        The reason of a callback that ended it.
    """

    __signature__ = Making()

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.interrupted = False
        self.stopped: str | None = None

    @property
    def epochs(self) -> int:
        """Return the number of finished epochs."""
        return len(self.rows)

    def __getitem__(self, name: str) -> list[float]:
        if name not in [*self]:
            why = f"; it has {', '.join(self)}" if self.rows else ", as no epoch was finished"
            raise KeyError(f"History: there is no {name!r}{why}.")
        return [row[name] for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows[0] if self.rows else ())

    def __len__(self) -> int:
        return len(self.rows[0]) if self.rows else 0

    def __repr__(self) -> str:
        last = ", ".join(f"{name}={value:.6g}" for name, value in self.rows[-1].items()) if self.rows else "none"
        ended = ", interrupted" if self.interrupted else f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({self.epochs} epochs{ended}; last: {last})"

    def plot(self, *names: str) -> list[Axes]:
        """Draw columns over epochs: one picture for the loss, one for each metric, training and validation together.

        Parameters
        ----------
        *names : str
            The columns; default: all but the learning rate.

        Returns
        -------
        list of matplotlib.axes.Axes
            One for each picture, of pyplot's current figure: ``pyplot.show()`` shows it, ``pyplot.savefig`` saves it.
        """
        pyplot = pyplot_for("History.plot")
        shown = {name: self[name] for name in names or [name for name in self if name != "lr"]}
        about = list(dict.fromkeys(name.removeprefix("val_") for name in shown)) or ["loss"]
        size = (4.8 * len(about), 3.6)
        _, (places,) = pyplot.subplots(1, len(about), squeeze=False, figsize=size, layout="constrained")
        for place, title in zip(places, about, strict=True):
            for name, label in ((title, "training"), (f"val_{title}", "validation")):
                if name in shown:
                    place.plot(range(1, self.epochs + 1), shown[name], marker=".", label=label)
            place.set(title=title.replace("_", " "), xlabel="epoch")
            place.xaxis.get_major_locator().set_params(integer=True)
            place.legend()
        return list(places)


def pyplot_for(function: str) -> Any:
    """Return matplotlib's pyplot, or say how to get it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"{function}: matplotlib is not installed; run `pip install matplotlib`.") from error
    return pyplot


def is_number(value: object) -> bool:
    """Return whether it is a real number in the range of floats, and not True or False."""
    return not isnan(number_or_nan(value))


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
    epochs, steps, samples : int
        How many epochs there will be, and steps and samples in each.
    seen : int
        Samples of this epoch so far.
    columns : tuple of str
        The columns of `history`, also before the first epoch.
    """

    __signature__ = Making()

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

    One that defines `state_dict` and `load_state_dict`, with arrays, numbers and strings by name, is part of
    checkpoints.

    Examples
    --------
    >>> import ag
    >>> class Printer(ag.training.Callback):
    ...     def on_epoch_end(self, run):
    ...         print(run.history.epochs, run.columns)
    """

    __signature__ = Making()

    def on_train_begin(self, run: Run) -> None:
        """Run before the first step, of a resumed training too."""

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        """Run after every step; `step` counts from 0 through all epochs, `loss` is that of the step."""

    def on_epoch_end(self, run: Run) -> None:
        """Run after every epoch, when its row is in the history."""

    def on_train_end(self, run: Run) -> None:
        """Run when training is over, also after Ctrl-C or an error."""


# ---------------------------------------------------------------------------------------------- callbacks that watch


class _Watching(Callback):
    """A callback that watches one column of the history."""

    def __init__(self, monitor: str | None, mode: str) -> None:
        self._function = type(self).__name__
        if not (monitor is None or isinstance(monitor, str)):
            raise TypeError(f"{self._function}: monitor is {monitor!r:.60}; the name of a column of the history is "
                            f"required, such as 'val_loss'.")
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"{self._function}: mode is {mode!r:.60}; use 'auto', 'min' or 'max'.")
        self.monitor, self.mode = monitor, mode

    def on_train_begin(self, run: Run) -> None:
        """Check that there will be such a column."""
        self._sign(run)

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
        if name.endswith("accuracy"):
            return 1.0
        if name.endswith(("loss", "error")):
            return -1.0
        raise ValueError(f"{self._function}: monitor is {name!r}, of which nobody knows whether more is better; give "
                         f"mode='max', or mode='min'.")

    def watched(self, run: Run) -> str:
        """Return the direction and the column, as one text."""
        return f"{'max' if self._sign(run) > 0 else 'min'} {self._column(run)}"

    def _best(self, run: Run, least: float = 0.0) -> int | None:
        """Return the number of the best epoch, from 0; a later one must be better by more than `least`."""
        sign, best = self._sign(run), None
        for i, row in enumerate(run.history.rows):
            value = sign * row[self._column(run)]
            if isfinite(value) and (best is None or value > best[1] + least):
                best = i, value
        return None if best is None else best[0]


def label_of(callback: Callback, run: Run) -> str:
    """Return the callback's name in checkpoints, the same when the training is resumed."""
    name = type(callback).__name__
    return f"{name} of {callback.watched(run)}" if isinstance(callback, _Watching) else name


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
        Whether less or more is better; "auto" knows it of losses, errors and accuracies.

    Examples
    --------
    >>> import ag
    >>> ag.training.EarlyStopping(patience=3, monitor="val_accuracy").mode
    'auto'
    """

    def __init__(self, patience: int = 5, min_delta: float = 0.0, monitor: str | None = None,
                 mode: str = "auto") -> None:
        super().__init__(monitor, mode)
        if not counts(patience):
            raise ValueError(f"EarlyStopping: patience is {patience!r:.60}; a whole number of at least 1 is required.")
        if not (is_number(min_delta) and 0 <= min_delta < np.inf):
            raise ValueError(f"EarlyStopping: min_delta is {min_delta!r:.60}; a finite number of at least 0 is "
                             f"required.")
        self.patience, self.min_delta = int(patience), float(min_delta)

    def on_epoch_end(self, run: Run) -> None:
        """Stop if there was no better epoch for too long."""
        best = self._best(run, self.min_delta)
        since = run.history.epochs - (0 if best is None else best + 1)
        if since >= self.patience:
            name = self._column(run)
            run.stop(f"{name} did not become better for {since} epochs" + (
                "" if best is None else f"; the best was {run.history[name][best]:.6g}, in epoch {best + 1}"))


class BestWeights(_Watching):
    """Keep the weights and buffers of the best epoch, and give them to the model when training is over.

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

    Notes
    -----
    Of equal epochs the first is the best.  The weights are restored after Ctrl-C and after an error, too.  A checkpoint
    holds them for the callback that watches the same column in the same way.

    Examples
    --------
    >>> import ag
    >>> ag.training.BestWeights(monitor="val_accuracy").epoch is None
    True
    """

    def __init__(self, monitor: str | None = None, mode: str = "auto",
                 path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(monitor, mode)
        self.path = self._file = path  # as given, and where that is when training begins
        self.epoch: int | None = None
        self._weights: dict[str, Array] = {}
        self._shapes: dict[str, Shape] | None = None  # of the model, once training has begun

    def on_train_begin(self, run: Run) -> None:
        """Forget the last training, and see that the file can be written."""
        super().on_train_begin(run)
        self._file = absolute(self.path)
        if self._file is not None:
            check_writable(self._file, "BestWeights")
        self.epoch, self._weights = None, {}
        self._shapes = {name: x.shape for name, x in state_of(run.model).items()}

    def on_epoch_end(self, run: Run) -> None:
        """Keep the weights if no epoch was better."""
        best = self._best(run)
        if best is not None and best + 1 == run.history.epochs:
            weights = {name: x.numpy() for name, x in state_of(run.model).items()}
            self.epoch, self._weights = best + 1, weights
            if self._file is not None:
                ag_save_model(run.model, self._file)

    def on_train_end(self, run: Run) -> None:
        """Give the model the best weights, if there are some."""
        if self.epoch is not None:
            load_into(state_of(run.model), self._weights, source="BestWeights: the best weights")
        elif run.history.epochs:
            best = self._best(run)
            log.warning("BestWeights: %s %s, so the model keeps its last weights.", self._column(run),
                        "was never a finite number" if best is None else
                        f"was best in epoch {best + 1}, of which the checkpoint had no weights")

    def state_dict(self) -> dict[str, Array | Json]:
        """The best epoch and its weights."""
        return {"epoch": self.epoch, **{f"weight.{name}": x for name, x in self._weights.items()}}

    def load_state_dict(self, state: Mapping[str, Array | Json]) -> None:
        """Go on with these; a CheckpointError if they are damaged, or of another model."""
        epoch: Json = state.get("epoch")
        weights = {name.removeprefix("weight."): x for name, x in state.items() if isinstance(x, np.ndarray)}
        if not (epoch is None or counts(epoch)):
            raise CheckpointError(f"BestWeights: the checkpoint's epoch is {epoch!r:.60}; a whole number of at least 1 "
                                  f"is required, or None. Go on with an older checkpoint.")
        if epoch is not None and self._shapes not in (None, {name: x.shape for name, x in weights.items()}):
            raise CheckpointError("BestWeights: the best weights in the checkpoint do not fit the model; give the "
                                  "model that was trained, or an older checkpoint.")
        self.epoch, self._weights = epoch, weights


# ---------------------------------------------------------------------------------------------- logs and progress


class CSVLog(Callback):
    """Write the history to a CSV file, a row per epoch.

    Parameters
    ----------
    path : path
        A file that is there is replaced, unless `append`.
    append : bool, optional
        Go on with a file that is there, which must have the same columns.

    Raises
    ------
    CheckpointError
        When training begins, if there is a file with other columns.

    Notes
    -----
    Columns are ``epoch``, from 1, ``seconds``, and those of the history.  After an epoch of a resumed training the file
    has all epochs of it.

    Examples
    --------
    >>> import ag, tempfile, os, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "log.csv")
    >>> data = np.ones((4, 2)), np.zeros(4, int)
    >>> history = ag.fit(ag.ag_linear(2, 2), data, epochs=2, callbacks=[ag.training.CSVLog(path)], verbose=False)
    >>> with open(path) as file:
    ...     print(file.readline().strip())
    epoch,seconds,loss,lr
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"CSVLog: path is {path!r:.60}; the name of a file is required.")
        self.path, self.append = Path(path), bool(append)
        self._file = self.path  # where that is when training begins
        self._before: list[str] = []

    def on_train_begin(self, run: Run) -> None:
        """Write the line of names."""
        names = ["epoch", "seconds", *run.columns]
        self._file = Path(absolute(self.path))
        before = self._lines() if self.append and self._file.exists() else []
        try:
            columns = next(csv.reader(before[:1]), None)
        except csv.Error:
            columns = []
        if before and columns != names:
            raise CheckpointError(f"CSVLog: {self.path} has the columns {before[0]:.200} and the training "
                                  f"{','.join(names)}; give another file, or append=False.")
        self._before = before or [",".join(names)]
        self.on_epoch_end(run)

    def _lines(self) -> list[str]:
        """Return the lines of the file that is there."""
        try:
            lines = read_regular(self._file).decode().replace("\r\n", "\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"CSVLog: {self.path} cannot be read ({error}); give another file, or "
                                  f"append=False.") from error
        return lines[:-1] if lines[-1] == "" else lines

    def on_epoch_end(self, run: Run) -> None:
        """Write all rows, atomically."""
        rows = [[str(i), f"{seconds:.3f}", *(repr(row[name]) for name in run.columns)]
                for i, (row, seconds) in enumerate(zip(run.history.rows, run.history.seconds, strict=True), 1)]
        replace_file(self._file, lambda: "\n".join([*self._before, *map(",".join, rows), ""]).encode())


class TensorBoard(Callback):
    """Write event files that TensorBoard shows.

    Parameters
    ----------
    folder : path, optional
        Where to; one folder per training.
    every : int, optional
        Also write the loss of every so many steps, as ``step_loss``.

    Notes
    -----
    Columns of the history are written under their names, with the number of the epoch, from 1, as the step.

    Examples
    --------
    >>> import ag
    >>> ag.training.TensorBoard("runs/first").every is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs", every: int | None = None) -> None:
        if not (every is None or counts(every)):
            raise ValueError(f"TensorBoard: every is {every!r:.60}; a whole number of at least 1 is required, or None.")
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"TensorBoard: folder is {folder!r:.60}; the name of a folder is required.")
        self.folder, self.every = os.fspath(folder), every
        self._writer: Any = None  # torch's or tensorboardX's

    def on_train_begin(self, run: Run) -> None:
        """Open the files."""
        self._writer = _writer_class()(absolute(self.folder))

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        """Write the loss of a step."""
        if self.every is not None and (step + 1) % self.every == 0:
            self._writer.add_scalar("step_loss", loss, step + 1)

    def on_epoch_end(self, run: Run) -> None:
        """Write the last row of the history."""
        for name, value in run.history.rows[-1].items():
            self._writer.add_scalar(name, value, run.history.epochs)
        self._writer.flush()

    def on_train_end(self, run: Run) -> None:
        """Close the files."""
        self._writer.close()


def _writer_class() -> Any:
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            return import_module(module).SummaryWriter
        except ImportError:
            continue
    raise ImportError("TensorBoard: there is no writer of event files; run `pip install tensorboardX`, or install "
                      "PyTorch and tensorboard.")


class Progress(Callback):
    """Show a bar per epoch, with the loss so far and the results of validation; lines without a screen."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None
        self._mean = Mean()
        self._began = self._until = perf_counter()
        self._before = 0  # samples of this epoch, in the training that is resumed
        self._shown = 0.0  # when the loss was written into the bar

    def on_train_begin(self, run: Run) -> None:
        """Note the time."""
        self._mean, self._began, self._before = Mean(), perf_counter(), run.seen

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        """Move the bar by the samples of the step."""
        if self._bar is None and shows_bars():
            self._bar = _bar(run, self._before)
        size = run.seen - self._before - self._mean.count
        self._mean.add(loss, size)
        self._until = perf_counter()
        if self._bar is not None:
            self._bar.update(size)
            if perf_counter() - self._shown > 0.1:
                self._bar.set_postfix_str(f"loss={self._mean.value:.4g}", refresh=False)
                self._shown = perf_counter()

    def on_epoch_end(self, run: Run) -> None:
        """Leave the numbers of the epoch on the screen."""
        numbers = {name: f"{value:.4g}" for name, value in run.history.rows[-1].items() if name != "lr"}
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(f"{name}={text}" for name, text in numbers.items()), refresh=True)
        elif not shows_bars():
            rate = self._mean.count / max(self._until - self._began, 1e-9)
            shown = ", ".join(f"{name} {text}" for name, text in numbers.items())
            write_line(f"epoch {run.history.epochs}/{run.epochs}: {shown}, {rate:,.0f} samples/s")
        self._end()

    def on_train_end(self, run: Run) -> None:
        """Close an unfinished bar, and print why training ended early."""
        self._end()
        if run.history.stopped:
            write_line(f"fit: stopped after epoch {run.history.epochs}: {run.history.stopped}.")

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._mean, self._began, self._before, self._shown = None, Mean(), perf_counter(), 0, 0.0


def _bar(run: Run, done: int) -> tqdm[NoReturn]:
    from tqdm.auto import tqdm  # chooses a notebook's bar there, and takes long to import

    return tqdm(total=run.samples, initial=done, desc=f"epoch {run.history.epochs + 1}/{run.epochs}", unit=" samples",
                leave=True, file=Forgiving(sys.stderr))
