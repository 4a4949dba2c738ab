"""Checkpoints of `dp_train`: one file with everything that the next step depends on.

Weights, optimizer state, losses so far, the seed and how many samples were trained on.  Which sample comes next and
which random numbers it draws follow from these, so a resumed job goes on bit for bit, on any number of replicas that
makes the same batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ag.errors import CheckpointError
from ag.tensor import Array
from ag.tensor_file import read_file, write_file

__all__ = ["DPState", "load_state", "save_state"]

_FORMAT = "ag-dp-train-1"
_WEIGHT, _OPTIMIZER = "weight.", "optimizer."


@dataclass(frozen=True)
class DPState:
    """Where a job is.

    Attributes
    ----------
    step : int
        Steps done.
    batch : int
        Samples per step.
    seed : int
    draws : int
        Random streams that a sample takes.
    losses : ndarray
        Losses of the steps done.
    weights, optimizer : dict of str to ndarray
    """

    step: int
    batch: int
    seed: int
    draws: int
    losses: Array
    weights: dict[str, Array]
    optimizer: dict[str, Array]


def save_state(path: str | os.PathLike[str], state: DPState) -> None:
    """Write a checkpoint; an older one stays until the new one is complete."""
    arrays = {"losses": np.ascontiguousarray(state.losses)}
    arrays |= {_WEIGHT + name: array for name, array in state.weights.items()}
    arrays |= {_OPTIMIZER + name: array for name, array in state.optimizer.items()}
    header = {name: str(getattr(state, name)) for name in ("step", "batch", "seed", "draws")}
    write_file(path, arrays, {"format": _FORMAT, **header})


def load_state(path: str | os.PathLike[str]) -> DPState | None:
    """The checkpoint, or None if there is no file.

    Raises
    ------
    CheckpointError
        If the file is truncated, foreign or incomplete.
    """
    if not Path(path).exists():
        return None
    header, arrays = read_file(path, _FORMAT, "dp_train")
    try:
        numbers = {name: int(header[name]) for name in ("step", "batch", "seed", "draws")}
        losses = arrays.pop("losses")
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"dp_train: {os.fspath(path)} lacks {error}; the file is not a complete "
                              f"checkpoint.") from error

    def part(prefix: str) -> dict[str, Array]:
        return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}

    return DPState(**numbers, losses=losses, weights=part(_WEIGHT), optimizer=part(_OPTIMIZER))
