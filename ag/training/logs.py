"""Logs of a training in files: a CSV with a row per epoch, and event files for TensorBoard.

Each row is on the disk when its epoch is over, so a training that is killed leaves what there was.  Knows the history;
no model.  `fit` calls these callbacks.  The writers of event files are optional packages, looked for when training
begins.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol

from ag.errors import CheckpointError
from ag.io.safetensors_file import absolute, read_regular, replace_file
from ag.training.callbacks import Callback, Run

__all__ = ["CSVLog", "TensorBoard"]


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
    OSError
        When training begins, if the file cannot be written.
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
        self._write(run)

    def on_epoch_end(self, run: Run) -> None:
        """Write all rows, which is done at once or not at all."""
        self._write(run)

    def _lines(self) -> list[str]:
        """The lines of the file that is there."""
        try:
            lines = read_regular(self._file).decode().replace("\r\n", "\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"CSVLog: {self.path} cannot be read ({error}); give another file, or "
                                  f"append=False.") from error
        return lines[:-1] if lines[-1] == "" else lines

    def _write(self, run: Run) -> None:
        rows = [[str(i), f"{seconds:.3f}", *(repr(row[name]) for name in run.columns)]
                for i, (row, seconds) in enumerate(zip(run.history.rows, run.history.seconds, strict=True), 1)]
        replace_file(self._file, lambda: "\n".join([*self._before, *map(",".join, rows), ""]).encode())


class _Writer(Protocol):
    """Of a writer of event files, what is used: torch's and tensorboardX's are alike."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...

    def flush(self) -> object: ...

    def close(self) -> object: ...


class TensorBoard(Callback):
    """Write event files that TensorBoard shows.

    Parameters
    ----------
    folder : path, optional
        Where to; one folder per training.
    every : int, optional
        Also write the loss of every so many steps, as ``step_loss``.

    Raises
    ------
    ImportError
        When training begins, if neither tensorboardX nor PyTorch's writer is installed.
    ValueError
        If `every` is out of range.

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
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"TensorBoard: every is {every!r:.60}; a whole number of at least 1 is required, or None.")
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"TensorBoard: folder is {folder!r:.60}; the name of a folder is required.")
        self.folder, self.every = os.fspath(folder), every
        self._writer: _Writer | None = None

    def on_train_begin(self, run: Run) -> None:
        """Open the files."""
        self._writer = _writer_class()(absolute(self.folder))

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        """Write the loss of a step."""
        if self._writer is not None and self.every is not None and (step + 1) % self.every == 0:
            self._writer.add_scalar("step_loss", loss, step + 1)

    def on_epoch_end(self, run: Run) -> None:
        """Write the last row of the history."""
        if self._writer is not None:
            for name, value in run.history.rows[-1].items():
                self._writer.add_scalar(name, value, run.history.epochs)
            self._writer.flush()

    def on_train_end(self, run: Run) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _writer_class() -> Callable[[str], _Writer]:
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            found: Callable[[str], _Writer] = import_module(module).SummaryWriter
        except ImportError:
            continue
        return found
    raise ImportError("TensorBoard: there is no writer of event files; run `pip install tensorboardX`, or install "
                      "PyTorch and tensorboard.")
