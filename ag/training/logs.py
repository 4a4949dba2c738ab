"""Callbacks that write the numbers of a training down: files, loggers of other libraries, the bar."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from ag.errors import CheckpointError
from ag.io.safetensors_file import absolute, read_regular, replace_file
from ag.log import Forgiving, shows_bars, write_line
from ag.optim.settings import whole
from ag.training.callbacks import Callback, Run
from ag.training.metrics import Mean

if TYPE_CHECKING:
    from tqdm.auto import tqdm

__all__ = ["CSVLog", "Logger", "TensorBoard"]


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
    >>> import ag
    >>> ag.training.CSVLog("log.csv", append=True).append
    True
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"CSVLog: path is {path!r:.60}; the name of a file is required.")
        self.path, self.append = Path(path), bool(append)
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
        replace_file(self._file, lambda: "\n".join([*self._before, *self._rows(run), ""]).encode())

    def _rows(self, run: Run) -> list[str]:
        return [",".join([str(i), f"{seconds:.3f}", *(repr(row[name]) for name in run.columns)])
                for i, (row, seconds) in enumerate(zip(run.history.rows, run.history.seconds, strict=True), 1)]


class Logger(Callback):
    """Give the numbers of a training to a function, such as that of another library.

    After an epoch, the numbers are ``epoch``, from 1, and the columns of the history.

    Parameters
    ----------
    function : callable
        ``function(numbers, step=step)``: a dict by name, and how many steps there were, as ``wandb.log`` and
        ``mlflow.log_metrics`` take them.
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
            raise TypeError(f"Logger: function is {function!r:.60}; a function of numbers and step is required, such "
                            f"as wandb.log.")
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
    folder : path, optional
        Where to; one folder per training.
    every : int, optional
        As of `Logger`.

    Examples
    --------
    >>> import ag
    >>> ag.training.TensorBoard("runs/first").every is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs", every: int | None = None) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"TensorBoard: folder is {folder!r:.60}; the name of a folder is required.")
        super().__init__(self._write, every)
        self.folder = os.fspath(folder)
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


class Progress(Callback):
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
