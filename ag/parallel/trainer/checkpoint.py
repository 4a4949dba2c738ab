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
from ag.parallel.comm.comm import Json

_FORMAT = "ag-dp-train-1"
_WEIGHT, _BUFFER, _CALLBACK = "weight.", "buffer.", "callback."
_LISTS = ("rates", "schedules")


class Dealt(NamedTuple):
    """The dealing of samples to steps; the bits of a job depend on all of it."""

    batch: int  # samples per step
    stack: int = 1  # samples that are passed at once
    shuffle: bool = False  # every pass has a new order
    samples: int = 0  # in the data; 0 in files of earlier versions


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


def save_state(path: str | os.PathLike[str], state: DPState) -> None:
    """Write a checkpoint; an older one remains until the new one is complete."""
    arrays = {"losses": np.ascontiguousarray(state.losses)}
    arrays |= {_WEIGHT + name: array for name, array in state.weights.items()}
    arrays |= {_BUFFER + name: array for name, array in state.buffers.items()}
    for i, optimizer in enumerate(state.optimizers):
        arrays |= {_optimizer(i) + name: array for name, array in optimizer.items()}
    arrays |= {_CALLBACK + name: np.ascontiguousarray(x) for name, x in state.callback.items()
               if isinstance(x, np.ndarray)}
    header = {name: str(getattr(state, name)) for name in ("step", "seed", "draws", "seen")}
    header["callback"] = to_json({name: x for name, x in state.callback.items() if not isinstance(x, np.ndarray)},
                                 "the state of the callback", "dp_train")
    header["made"] = json.dumps(dict(state.made))
    header |= {name: str(int(number)) for name, number in state.dealt._asdict().items()}
    header |= {name: to_json(getattr(state, name), f"the state of {name}", "dp_train") for name in _LISTS}
    write_file(path, arrays, {"format": _FORMAT, **header})


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
    """Return the checkpoint, or None if there is no file; a CheckpointError refuses damaged and foreign files.

    Files of earlier versions lack buffers, rates, schedules and callback; they passed samples one by one, in order.
    """
    if not Path(path).exists():
        return None
    header, arrays = read_file(path, _FORMAT, "dp_train")
    try:
        numbers: dict[str, Any] = {name: int(header[name]) for name in ("step", "seed", "draws")}
        numbers["dealt"] = Dealt(int(header["batch"]), int(header.get("stack", 1)),
                                 bool(int(header.get("shuffle", 0))), int(header.get("samples", 0)))
        numbers |= {name: list(json.loads(header.get(name, "[]"))) for name in _LISTS}
        numbers["seen"] = int(header.get("seen", numbers["step"]))
        numbers["made"] = dict(json.loads(header.get("made", "{}")))
        told = dict(json.loads(header.get("callback", "{}")))
        losses = arrays.pop("losses")
        _check(losses=losses, **numbers)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"dp_train: {os.fspath(path)} has no readable header ({error!s:.200}); the file is "
                              f"not a complete checkpoint.") from error

    def part(prefix: str) -> dict[str, Array]:
        return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}

    optimizers = [part(_optimizer(0))]
    while more := part(_optimizer(len(optimizers))):
        optimizers.append(more)
    return DPState(**numbers, losses=losses, weights=part(_WEIGHT), buffers=part(_BUFFER),
                   optimizers=optimizers, callback={**told, **part(_CALLBACK)})


def _check(step: int, seed: int, draws: int, dealt: Dealt, seen: int, rates: list[object], losses: Array,
           **_: object) -> None:
    if not (0 <= step < 1 << 62 and 0 <= seed < 1 << 64 and 0 <= draws < 1 << 62 and 0 <= step - seen <= 1):
        raise ValueError(f"step {step}, seen {seen}, seed {seed}, draws {draws}")
    if not (1 <= dealt.stack <= 1 << 62 and 1 <= dealt.batch <= 1 << 62 and 0 <= dealt.samples < 1 << 63):
        raise ValueError(f"batch {dealt.batch}, stack {dealt.stack}, samples {dealt.samples}")
    if not all(type(rate) is float and 0 <= rate <= LARGEST_RATE for rate in rates):
        raise ValueError(f"rates {rates!r:.60}")
    if losses.ndim != 1 or losses.dtype != np.float64:
        raise ValueError(f"losses of shape {losses.shape} and type {losses.dtype}")
