"""Progress: a bar for every epoch, in terminals and notebooks, and a line where there is neither.

    epoch 2/5: 100%|██████████| 1437/1437 [00:01<00:00, 1290 samples/s, loss=0.31, val_loss=0.4, val_accuracy=0.95]

Knows numbers and a screen; nothing of models.  `fit` makes it, the last of its callbacks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Protocol

from ag.engine.output import Forgiving, shows_bars, write_line
from ag.training.callbacks import Callback, Run
from ag.training.metrics import Mean

__all__ = ["Progress"]


class _Bar(Protocol):
    """Of a bar of tqdm, what is used."""

    def update(self, n: float) -> object: ...

    def set_postfix_str(self, s: str, refresh: bool) -> object: ...

    def refresh(self) -> object: ...

    def close(self) -> object: ...


class Progress(Callback):
    """Show how far a training is: a bar per epoch, which stays, with the loss so far and what validation gave."""

    def __init__(self) -> None:
        self._bar: _Bar | None = None
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
        numbers = _numbers(run.history.rows[-1])
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(f"{name}={text}" for name, text in numbers.items()), refresh=True)
        elif not shows_bars():
            rate = self._mean.count / max(self._until - self._began, 1e-9)
            shown = ", ".join(f"{name} {text}" for name, text in numbers.items())
            write_line(f"epoch {run.history.epochs}/{run.epochs}: {shown}, {rate:,.0f} samples/s")
        self._end()

    def on_train_end(self, run: Run) -> None:
        """Close the bar of an epoch that was not finished, and say why training ended early."""
        self._end()
        if run.history.stopped:
            write_line(f"fit: stopped after epoch {run.history.epochs}: {run.history.stopped}.")

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._mean, self._began, self._before, self._shown = None, Mean(), perf_counter(), 0, 0.0


def _numbers(row: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.4g}" for name, value in row.items() if name != "lr"}


def _bar(run: Run, done: int) -> _Bar:
    from tqdm.auto import tqdm  # chooses a notebook's bar there, and takes long to import

    bar: _Bar = tqdm(total=run.samples, initial=done, desc=f"epoch {run.history.epochs + 1}/{run.epochs}",
                     unit=" samples", leave=True, file=Forgiving(sys.stderr))
    return bar
