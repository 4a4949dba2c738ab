"""The compiler's door: `record` collects launches, `compile_program` makes fewer of them.

A pass is a function ``(graph, target)``.  What it leaves in memory that others hold keeps its bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from ag.engine.backend import Backend
from ag.engine.buffer import Buffer, Device
from ag.engine.compile.copy_elimination import eliminate_copies, eliminate_dead_launches, fold_scaling, keep_numbers
from ag.engine.compile.fold_rounding import fold_rounding
from ag.engine.compile.fuse_elementwise import fuse_elementwise, fuse_epilogues
from ag.engine.compile.graph import Graph, settle
from ag.engine.compile.memory_plan import plan_memory
from ag.engine.compile.rematerialize import rematerialize
from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.engine.program import Launch, Program, Recording
from ag.engine.target import Target

Pass = Callable[[Graph, Target], None]
Wanted = Callable[[Recording, Target], bool]
OnUpload = Callable[[Array, DType, Device], Buffer | None]


PASSES: tuple[tuple[Pass, Wanted | None], ...] = (  # and when they are wanted, if not always
    (fold_scaling, None),
    (fold_rounding, None),
    (eliminate_copies, None),
    (eliminate_dead_launches, None),
    (keep_numbers, None),
    (rematerialize, lambda recording, target: recording.recompute),
    (fuse_elementwise, None),
    (fuse_epilogues, lambda recording, target: target.epilogues),
    (plan_memory, None),
)


def compile_program(recording: Recording, target: Target) -> list[Launch]:
    """Launches that leave the same values behind as those recorded, in whose place they come."""
    with _no_collections():
        holders = settle(recording)  # who outlives the program is known, not guessed
        graph = Graph(recording.launches, holders)
        recording.launches.clear()
        for run_pass, is_wanted in PASSES:
            if is_wanted is None or is_wanted(recording, target):
                run_pass(graph, target)
        recording.launches += graph.launches()
        return recording.launches


@contextmanager
def _no_collections() -> Iterator[None]:
    """Let Python's garbage collector wait, which goes through all live objects while these grow."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def record(backend: Device | None, on_upload: OnUpload | None = None, recompute: bool = False,
           trial: bool = False, waits: bool = False) -> Recording:
    """Return a context that collects every launch of this thread; its `finished` then gives the program."""
    return Recording(_program, backend, on_upload, recompute, trial, waits)


def _program(recording: Recording) -> Program:
    backend = cast(Backend, recording.backend)
    exact = backend.settings.precision == "highest"  # kernels of a lower precision take no epilogues
    target = backend.target._replace(epilogues=backend.target.epilogues and exact, halves=backend.halves)
    return backend.program(compile_program(recording, target))
