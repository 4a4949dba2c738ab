"""The epochs of `fit`: a callback of `dp_train` that measures the model, writes the history and calls the callbacks.

Its state is in the checkpoints of `dp_train`, so a training goes on in the middle of an epoch, and of its end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain, count
from math import isfinite
from time import perf_counter
from types import TracebackType

from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import CheckpointError
from ag.log import log
from ag.optim.optimizer import Optimizer
from ag.parallel.comm.comm import Json
from ag.parallel.trainer.callbacks import DPStep, Stateful
from ag.parallel.trainer.checkpoint import load_state
from ag.training.callbacks import Callback, History, Run, label_of
from ag.training.data import Data
from ag.training.evaluation import Loss, Trained, means_of
from ag.training.metrics import Mean, Metric

_STATE = ": "  # in a checkpoint, between a callback and the name of a part of its state


class Epochs:
    """The epochs of one training; `held` is measured after each, and `apart` says if that is not `data`."""

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
        self._begun: list[Callback] = []
        self._since = perf_counter()

    def steps_of(self, checkpoint: str | os.PathLike[str] | None, leaf: int, told: str = "") -> int:
        """Return how many steps there are to be, with those of a checkpoint, whose epochs are taken over.

        A checkpoint of another training is a CheckpointError.
        """
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
        self._say_what_begins_anew(state.callback)
        if self.run.history.stopped is not None:
            log.warning("fit: the training in %s was stopped after epoch %d (%s), and does not go on.", checkpoint,
                        self.run.history.epochs, self.run.history.stopped)
            return state.step
        if state.step > steps:
            raise CheckpointError(f"fit: the checkpoint is in epoch {-(-state.step // self._data.steps)} and epochs is "
                                  f"{self.run.epochs}; epochs counts all, those done before too.")
        return steps

    def owns(self, made: Optimizer | Sequence[Optimizer]) -> Optimizer | Sequence[Optimizer]:
        """Note the optimizers that were made."""
        self.run.optimizers = [*made] if isinstance(made, Sequence) else [made]
        return made

    def __enter__(self) -> Epochs:
        try:
            for callback in self._callbacks:
                callback.on_train_begin(self.run)
                self._begun.append(callback)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self._since = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Tell all callbacks of the end, also if one of them fails."""
        if self._begun:
            callback = self._begun.pop(0)
            try:
                callback.on_train_end(self.run)
            finally:
                self.__exit__(kind, error, trace)

    def finish(self, model: Trained, interrupted: bool) -> None:
        """Note the trained model."""
        self.run.model = model
        self.run.history.interrupted = interrupted

    def __call__(self, step: DPStep) -> bool:
        """Note a step, and return whether to go on."""
        run = self.run
        run.model = step.models[0]
        if step.step == self._next:  # otherwise it was noted before the interrupt
            self._losses.append(step.loss)
            self._next += 1
            run.seen += self._data.size(step.step)
            for callback in self._callbacks:
                callback.on_step_end(run, step.step, step.loss)
        if self._next % self._data.steps == 0:
            self._end_epoch()
        return run.history.stopped is None

    def _end_epoch(self) -> None:
        run = self.run
        if run.history.epochs * self._data.steps < self._next:
            row = {"loss": self._mean_loss()}
            if self._names:
                found = means_of("fit", run.model, self._held, self.loss, self._metrics)
                row |= {self._names[name]: value for name, value in found.items() if name in self._names}
            row["lr"] = run.optimizers[0].lr
            seconds = perf_counter() - self._since
            run.history.append(row)
            run.history.seconds.append(seconds)
            self._losses, self._told, self._since, run.seen = [], 0, perf_counter(), 0
        while self._told < len(self._callbacks):
            self._callbacks[self._told].on_epoch_end(run)
            self._told += 1

    def _mean_loss(self) -> float:
        """Return the mean over the epoch's samples, without steps whose loss is not finite."""
        mean = Mean()
        for k, loss in enumerate(self._losses, self._next - len(self._losses)):
            if isfinite(loss):
                mean.add(loss, self._data.counted(k))
        return mean.value

    def state_dict(self) -> dict[str, Array | Json]:
        """Return all that a checkpoint must hold to go on, with the states of callbacks."""
        history = self.run.history
        state: dict[str, Array | Json] = {
            "dealt": self._dealt, "next": self._next, "losses": self._losses, "told": self._told,
            "seen": self.run.seen, "columns": list(self.run.columns), "rows": history.rows,
            "seconds": history.seconds, "stopped": history.stopped}
        for prefix, callback in self._stateful():
            state |= {prefix + name: value for name, value in callback.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Array | Json]) -> None:
        """Go on with the state of a checkpoint; a CheckpointError if it is damaged or of another training."""
        _refuse_damaged(state)
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
                                  f"losses and {len(seconds)} seconds, which do not go together; the file is damaged. "
                                  f"Use another one.")
        history = self.run.history
        self._next, self._told, self._losses = told["next"], told["told"], list(losses)
        self.run.seen = sum(map(self._data.size, range(self._next - len(losses), self._next)))
        history.rows, history.seconds, history.stopped = [dict(row) for row in rows], list(seconds), told["stopped"]
        for prefix, callback in self._stateful():
            mine = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
            if mine:
                callback.load_state_dict(mine)

    def _say_what_begins_anew(self, state: Mapping[str, Array | Json]) -> None:
        """Warn of callbacks without a state in a checkpoint, and of states without a callback."""
        there = {name.partition(_STATE)[0] for name in state if _STATE in name}
        here = {prefix.removesuffix(_STATE) for prefix, _ in self._stateful()}
        for label in sorted(here ^ there):
            log.warning("fit: the checkpoint has no state of the callback %s, which begins anew." if label in here else
                        "fit: the checkpoint has a state of %s, which is no longer among the callbacks.", label)

    def _stateful(self) -> list[tuple[str, Stateful]]:
        """Return the callbacks with a state, wherever they stand among others, and the beginning of its names."""
        found: dict[str, Stateful] = {}
        for callback in self._callbacks:
            if isinstance(callback, Stateful):
                label = label_of(callback, self.run)
                places = chain([label], (f"{label}, number {n}" for n in count(2)))
                found[next(place + _STATE for place in places if place + _STATE not in found)] = callback
        return [*found.items()]


def _refuse_damaged(state: Mapping[str, Array | Json]) -> None:
    """Refuse a checkpoint in which an entry is missing or of another kind than `state_dict` writes."""
    columns, rows = state.get("columns"), state.get("rows")
    fits = {
        "dealt": isinstance(state.get("dealt"), str),
        "columns": isinstance(columns, list) and all(isinstance(name, str) for name in columns),
        "next": counts(state.get("next"), least=0), "told": counts(state.get("told"), least=0),
        "losses": _are_numbers(state.get("losses")), "seconds": _are_numbers(state.get("seconds")),
        "rows": isinstance(rows, list) and all(isinstance(row, dict) and [*row] == columns
                                               and _are_numbers([*row.values()]) for row in rows),
        "stopped": state.get("stopped", 0) is None or isinstance(state.get("stopped"), str)}
    for name, is_fit in fits.items():
        if not is_fit:
            what = f"{state[name]!r:.60}" if name in state else "missing"
            raise CheckpointError(f"fit: the checkpoint's {name} is {what}; the file is damaged. Use another one.")


def _are_numbers(given: object) -> bool:
    return isinstance(given, list) and all(type(x) is float or (type(x) is int and abs(x) < 1 << 53) for x in given)
