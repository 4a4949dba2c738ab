"""Checkpoints of a training loop: one file with everything that the next step depends on, loaded all or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ag.engine.kernels.convert import BFLOAT16
from ag.engine.primitive import Array
from ag.engine.random import generator_snapshot, restore_generator
from ag.engine.shape import counts
from ag.errors import CheckpointError
from ag.io.model_file import check_arguments, tied_in
from ag.io.safetensors_file import elements_of, read_file, to_json, write_file
from ag.nn.layer import Layer, Model, load_into, named_tensors, refuse_untied, ties
from ag.optim.optimizer import Optimizer

__all__ = ["Checkpoint", "Stateful", "ag_load_checkpoint", "ag_save_checkpoint"]

_FORMAT = "ag-checkpoint-1"
LARGEST_RATE = float(np.finfo(np.float32).max)  # devices hold rates in float32


@runtime_checkable
class Stateful(Protocol):
    """Something with a state that JSON can hold: a schedule or a data loader.

    Examples
    --------
    >>> import ag
    >>> isinstance(ag.optim.StepSchedule(ag.optim.SGD(ag.nn.Linear(1, 1), lr=0.1), 10).state_dict(), dict)
    True
    """

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: dict[str, object], /) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """The numbers and objects in a checkpoint besides the states that were loaded.

    Attributes
    ----------
    step, extra : int and object
        Those given to `ag_save_checkpoint`.

    Examples
    --------
    >>> import ag, tempfile
    >>> path, model = tempfile.mkdtemp() + "/run.safetensors", ag.nn.Linear(2, 1)
    >>> ag.ag_save_checkpoint(path, model, step=7, extra={"best": 0.5})
    >>> ag.ag_load_checkpoint(path, model).step
    7
    """

    step: int
    extra: Any


def ag_save_checkpoint(path: str | os.PathLike[str], model: Model, optimizer: Optimizer | None = None,
                       scheduler: Stateful | None = None, dataloader: Stateful | None = None, step: int = 0,
                       extra: object = None) -> None:
    """Save a training loop between two steps, so that it can go on bit for bit.

    Parameters
    ----------
    path : path
        File to write; replaced only once the new one is complete.
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    optimizer : Optimizer, optional
    scheduler, dataloader : schedule and DataLoader, optional
        Or any objects with ``state_dict()`` and ``load_state_dict(state)``, the state being JSON.  A loader is saved in
        the middle of its epoch.
    step : int, optional
        Steps done, for your own use.
    extra : object, optional
        Anything else that JSON can hold.

    Raises
    ------
    TypeError
        If an argument is of a wrong kind, or `extra`, or the state of an object of your own, is not JSON.

    Notes
    -----
    The random generator is saved too, with the stream of every device in use, and what the replicas of a
    `CompressedDataParallel` have not sent yet.

    Examples
    --------
    >>> import ag, tempfile
    >>> path, model = tempfile.mkdtemp() + "/run.safetensors", ag.ag_linear(2, 1)
    >>> ag.ag_save_checkpoint(path, model, ag.optimizer_adam(model), step=10, extra={"best": 0.5})
    >>> ag.ag_load_checkpoint(path, model)
    Checkpoint(step=10, extra={'best': 0.5})
    """
    check_arguments("ag_save_checkpoint(path, model, optimizer)", path, model)
    _check_parts("ag_save_checkpoint", optimizer, scheduler=scheduler, dataloader=dataloader)
    if not counts(step, least=0):
        raise ValueError(f"ag_save_checkpoint: step is {step!r}; a whole number of at least 0 is required.")
    header = {"format": _FORMAT, "step": str(int(step)), "extra": to_json(extra, "extra", "ag_save_checkpoint"),
              "generator": to_json(generator_snapshot(), "the generator", "ag_save_checkpoint")}
    tensors = named_tensors(model)
    header["tied"] = json.dumps(ties(tensors))
    arrays = {f"model.{name}": elements_of(x) for name, x in tensors.items()}
    for key, state in _extra_state(model).items():
        arrays |= {f"{key}.{name}": array for name, array in state.items()}
    if optimizer is not None:
        arrays |= {f"optimizer.{name}": array for name, array in optimizer.state_dict().items()}
        header["lr"] = json.dumps(float(optimizer.lr))  # with all its digits; the device holds it in float32
    for name, part in (("scheduler", scheduler), ("dataloader", dataloader)):
        if part is not None:
            header[name] = to_json(part.state_dict(), f"the state of {name}", "ag_save_checkpoint")
    write_file(path, arrays, header, "ag_save_checkpoint")


def ag_load_checkpoint(path: str | os.PathLike[str], model: Any, optimizer: Optimizer | None = None,
                       scheduler: Stateful | None = None, dataloader: Stateful | None = None) -> Checkpoint:
    """Put a training loop where `ag_save_checkpoint` was called.

    Parameters
    ----------
    path : path
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
        Built as the saved one was, on any device.
    optimizer, scheduler, dataloader : Optimizer, schedule and DataLoader, optional
        Made for `model`'s parameters.  What is not given stays in the file.

    Returns
    -------
    Checkpoint

    Raises
    ------
    CheckpointError
        If the file is missing, truncated or foreign, or something in it does not fit; the message lists all of it,
        and neither the objects nor the random generator have changed.

    Notes
    -----
    On the same devices the following steps are bit for bit those of a loop that was not interrupted.

    Examples
    --------
    >>> import ag, tempfile
    >>> path = tempfile.mkdtemp() + "/run.safetensors"
    >>> loader = ag.ag_dataloader([[1.0, 2.0, 3.0]], batch_size=1, shuffle=False)
    >>> first, model = loader.next_batch(), ag.ag_linear(1, 1)
    >>> ag.ag_save_checkpoint(path, model, dataloader=loader)
    >>> checkpoint = ag.ag_load_checkpoint(path, model, dataloader=loader)
    >>> loader.next_batch().x.item()
    2.0
    """
    check_arguments("ag_load_checkpoint(path, model, optimizer)", path, model)
    _check_parts("ag_load_checkpoint", optimizer, scheduler=scheduler, dataloader=dataloader)
    where = f"ag_load_checkpoint: {os.fsdecode(path)}"
    header, arrays = read_file(path, _FORMAT, "ag_load_checkpoint")
    try:
        said = {name: json.loads(text) for name, text in header.items() if name != "format"}
        checkpoint = Checkpoint(int(header["step"]), said["extra"])
        generator = said["generator"]
        tied = tied_in(header, where)
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} has no readable header ({error!r:.300}); the file is not a complete "
                              f"checkpoint.") from error
    tensors = named_tensors(model)
    parts = [_Part("model", {n: elements_of(x) for n, x in tensors.items()}, _below("model.", arrays),
                   lambda state: load_into(tensors, state),
                   lambda state: refuse_untied(tensors, tied, "ag_load_checkpoint: the file"))]
    parts += [_Part(name, state, _below(f"{name}.", arrays) or None, partial(model.load_extra_state, name))
              for name, state in _extra_state(model).items()]
    held = _below("optimizer.", arrays) or None
    if optimizer is not None:
        parts.append(_Part("optimizer", optimizer.state_dict(), held, optimizer.load_state_dict))
    for name, part in (("scheduler", scheduler), ("dataloader", dataloader)):
        if part is not None:
            check = getattr(part, "check_state_dict", None)
            parts.append(_Part(name, deepcopy(part.state_dict()), said.get(name), part.load_state_dict,
                               check or (lambda state: None), tells=check is not None))
    if optimizer is not None and held is not None:  # after the schedule, as a rate may have been assigned beside it
        parts.append(_Part("lr", optimizer.lr, said.get("lr"), lambda rate: _set_rate(optimizer, rate)))
    parts.append(_Part("generator", generator_snapshot(), generator, restore_generator))
    with ExitStack() as undo:
        if optimizer is not None:
            undo.callback(_set_rate, optimizer, optimizer.lr)  # last, with the digits that the other states lack
        wrong = [text for part in parts if (text := part.misfit(undo)) is not None]
        if wrong:
            raise CheckpointError(f"{where} does not fit: {'; '.join(wrong)}.")
        for last in parts:
            if last.tells:
                last.load(last.after)
        undo.pop_all()
    return checkpoint


def _check_parts(function: str, optimizer: object, **parts: object) -> None:
    if not (optimizer is None or (hasattr(optimizer, "lr") and isinstance(optimizer, Stateful))):
        raise TypeError(f"{function}: optimizer is a {type(optimizer).__name__}; an optimizer is required, or None.")
    for name, part in parts.items():
        if not (part is None or isinstance(part, Stateful)):
            raise TypeError(f"{function}: {name} is a {type(part).__name__}; an object with state_dict() and "
                            f"load_state_dict(state) is required, or None.")


@dataclass(frozen=True)
class _Part:
    name: str
    before: Any  # its state now
    after: Any  # the file's; None if the file holds none
    load: Callable[[Any], None]
    check: Callable[[Any], None] = lambda state: None
    tells: bool = False  # the check finds all errors: the state is set last, as a loader's running loops cannot go back

    def misfit(self, undo: ExitStack) -> str | None:
        """Load the state and leave the way back in `undo`; or say why it does not fit."""
        if self.after is None:
            return f"{self.name}: the file holds no state of it"
        try:
            _same_types(self.before, self.after)
            self.check(self.after)
            if not self.tells:
                undo.callback(self.load, self.before)
                self.load(self.after)
        except CheckpointError as error:
            text = str(error).partition(": ")[2].rstrip(".")
            lists = isinstance(self.after, dict) and any(isinstance(x, np.ndarray) for x in self.after.values())
            return f"{self.name}: {text}" if lists else f"{self.name}: {text:.500}"  # values may be of any length
        return None


def _extra_state(model: Any) -> dict[str, dict[str, Array]]:
    """Return the model's state besides its tensors, by part; empty for a model that is no layer."""
    return model.extra_state() if isinstance(model, Layer) else {}


def _same_types(before: Any, after: Any) -> None:
    """Refuse arrays of other element types, which loading would convert."""
    wrong = [f"{name} is {_type(array)} instead of {_type(before[name])}"
             for name, array in (after.items() if isinstance(after, dict) else ())
             if isinstance(array, np.ndarray) and name in before and array.dtype != before[name].dtype]
    if wrong:
        raise CheckpointError(f"element types: {', '.join(wrong)}.")


def _type(array: Array) -> str:
    return "bfloat16" if array.dtype == BFLOAT16 else str(array.dtype)


def _set_rate(optimizer: Optimizer, rate: object) -> None:
    if type(rate) is not float or not (isfinite(rate) and 0 <= rate <= LARGEST_RATE):
        raise CheckpointError(f"lr: {rate!r:.60} is no learning rate.")
    optimizer.lr = rate


def _below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
