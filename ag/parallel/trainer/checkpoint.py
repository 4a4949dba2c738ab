"""Checkpoints of `dp_train`: one file with everything that the next step depends on.

A resumed training goes on bit for bit, on any number of replicas with the same batch and stacks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.checkpoint import LARGEST_RATE
from ag.io.safetensors_file import read_file, to_json, write_file
from ag.log import log
from ag.nn.layer import Modes
from ag.parallel.comm.comm import Json

_FORMAT = "ag-dp-train-1"
_WEIGHT, _BUFFER, _CALLBACK = "weight.", "buffer.", "callback."
_HEADER = ("step", "seed", "draws", "seen", "dealt", "rates", "schedules", "made")  # what is no array


class Dealt(NamedTuple):
    """The dealing of samples to steps; the bits of a job depend on all of it."""

    batch: int  # samples per step
    stack: int = 1  # samples that are passed at once
    shuffle: bool = False  # every pass has a new order
    samples: int = 0  # in the data


@dataclass(frozen=True)
class DPState:
    """The content of a checkpoint."""

    step: int  # steps done
    dealt: Dealt
    seed: int
    draws: int  # random streams that a stack of samples takes
    losses: Array  # of the steps done
    weights: dict[str, Array]
    buffers: dict[str, Array]
    optimizers: list[dict[str, Array]]
    rates: list[float]  # exact learning rates of the optimizers
    schedules: list[Json]  # their states; None for a schedule without
    seen: int = 0  # steps for which the callback has returned
    callback: Mapping[str, Array | Json] = field(default_factory=dict)  # its state
    made: Mapping[str, str] = field(default_factory=dict)  # other arguments of the job, in words
    layers: Modes = field(default_factory=dict)


def save_state(path: str | os.PathLike[str], state: DPState) -> None:
    """Write a checkpoint; an older one remains until the new one is complete."""
    told = {name: x for name, x in state.callback.items() if not isinstance(x, np.ndarray)}
    arrays = {"losses": np.ascontiguousarray(state.losses)}
    parts = [(_WEIGHT, state.weights), (_BUFFER, state.buffers),
             (_CALLBACK, {name: np.ascontiguousarray(x) for name, x in state.callback.items() if name not in told}),
             *((_optimizer(i), optimizer) for i, optimizer in enumerate(state.optimizers))]
    for prefix, part in parts:
        arrays |= {prefix + name: array for name, array in part.items()}
    header = {name: to_json(getattr(state, name), f"the state of {name}", "dp_train") for name in _HEADER}
    header["layers"] = to_json(state.layers, "the modes of layers", "dp_train")
    header["callback"] = to_json(told, "the state of the callback", "dp_train")
    write_file(path, arrays, {"format": _FORMAT, **header}, "dp_train")


def refuse_unlike(state: DPState, dealt: Dealt, free: bool, steps: int) -> None:
    """Refuse a checkpoint with other dealing (except for a `free` size of stacks), or with more steps than the job."""
    old = state.dealt
    if old.batch != dealt.batch:
        raise CheckpointError(f"dp_train: the checkpoint was made with {old.batch} samples per step and the job has "
                              f"{dealt.batch}; give batch={old.batch}.")
    if old.shuffle != dealt.shuffle or (old.stack != dealt.stack and not free):
        raise CheckpointError(f"dp_train: the checkpoint was made with shuffle={old.shuffle}, stack={old.stack} and "
                              f"the job has shuffle={dealt.shuffle}, stack={dealt.stack}; give the same.")
    if state.step > steps or len(state.losses) != state.step:
        raise CheckpointError(f"dp_train: the checkpoint is at step {state.step} and holds {len(state.losses)} losses, "
                              f"and n_iter is {steps}; n_iter counts all steps, those done before too.")


def tell_of_unlike(before: Mapping[str, str], made: Mapping[str, str]) -> None:
    """Log the arguments that the checkpoint's steps and the job's have unlike."""
    other = [name for name in made if before.get(name, made[name]) != made[name]]
    if other:
        log.warning("dp_train: the checkpoint was made with %s, and the job has %s; it goes on with these.",
                    *(", ".join(f"{name}={of[name]}" for name in other) for of in (before, made)))


def _optimizer(i: int) -> str:
    return f"optimizer{i + 1}." if i else "optimizer."


def load_state(path: str | os.PathLike[str]) -> DPState | None:
    """Return the checkpoint, or None if there is no file; a CheckpointError refuses damaged and foreign files."""
    if not Path(path).exists():
        return None
    header, arrays = read_file(path, _FORMAT, "dp_train")
    try:
        read: dict[str, Any] = {name: json.loads(header[name]) for name in (*_HEADER, "callback")}
        read["dealt"] = Dealt(*read["dealt"])
        read["losses"] = arrays.pop("losses")
        _check(**read)
        read["layers"] = _layers(json.loads(header.get("layers", "{}")))  # older files have none
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"dp_train: {os.fspath(path)} has no readable header ({error!s:.200}); the file is "
                              f"not a complete checkpoint.") from error

    def part(prefix: str) -> dict[str, Array]:
        return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}

    optimizers = [part(_optimizer(0))]
    while more := part(_optimizer(len(optimizers))):
        optimizers.append(more)
    read["callback"] |= part(_CALLBACK)
    return DPState(**read, weights=part(_WEIGHT), buffers=part(_BUFFER), optimizers=optimizers)


def _check(step: int, seed: int, draws: int, seen: int, dealt: Dealt, rates: list[object], schedules: object,
           made: object, callback: object, losses: Array) -> None:
    ranges = {"step": (step, 0, 1 << 62), "seed": (seed, 0, 1 << 64), "draws": (draws, 0, 1 << 62),
              "seen": (seen, step - 1, step + 1), "batch": (dealt.batch, 1, 1 << 62),
              "stack": (dealt.stack, 1, 1 << 62), "samples": (dealt.samples, 1, 1 << 63)}
    for name, (number, least, end) in ranges.items():
        if type(number) is not int or not least <= number < end:
            raise ValueError(f"{name} {number!r:.60}")
    if type(dealt.shuffle) is not bool:
        raise ValueError(f"shuffle {dealt.shuffle!r:.60}")
    if not all(type(rate) is float and 0 <= rate <= LARGEST_RATE for rate in rates):
        raise ValueError(f"rates {rates!r:.60}")
    if not (isinstance(schedules, list) and isinstance(made, dict) and isinstance(callback, dict)):
        raise ValueError("schedules, made or callback of another kind")
    if losses.ndim != 1 or losses.dtype != np.float64:
        raise ValueError(f"losses of shape {losses.shape} and type {losses.dtype}")


def _layers(given: object) -> Modes:
    if not isinstance(given, dict) or not all(isinstance(mode, bool) and isinstance(frozen, list) and all(
            isinstance(x, str) for x in frozen) for mode, frozen in given.values()):
        raise ValueError("layers of another kind")
    return {name: (mode, tuple(frozen)) for name, (mode, frozen) in given.items()}
