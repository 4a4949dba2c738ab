"""Buffers to record programs with, and the kernels of a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ag.engine.arena import Arena
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32
from ag.engine.program import Program


def buffer(backend: Backend, array: Any) -> Buffer:
    found = backend.alloc(np.shape(array), F32)
    backend.upload(np.asarray(array), found)
    return found


def kernels(program: Program) -> list[str]:
    return [launch.primitive.name for launch in program._launches]  # type: ignore[attr-defined]


def values(backend: Backend, *numbers: float) -> Buffer:
    """A vector of these numbers."""
    return buffer(backend, np.array(numbers, np.float32))


def replay(backend: Backend, program: Program, **inputs: tuple[Buffer, list[float]]) -> None:
    """Run a program once more, with these numbers in these buffers."""
    for target, numbers in inputs.values():
        backend.upload(np.array(numbers, np.float32), target)
    program.run()


def reset_peak(arena: Arena) -> None:
    """Start measuring the peak of an arena anew from what is live now."""
    arena._take_back()
    arena._peak = arena._live
