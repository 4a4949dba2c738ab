"""The compiler's door: `record` collects launches; `compile_program` makes fewer, the backend a program of these.

    with record(backend) as recording:
        step()                          # runs as always, and every launch is noted; or is only noted, if it `waits`
    recording.finished().run()          # the same launches, fewer and in less memory

`Recording.finished` calls `compile_program`.  Other rooms import `record` and nothing else of `ag.engine.compile`: a
captured step (`ag.autograd.captured.call`) and the trainer's optimizers on the host
(`ag.parallel.trainer.host_optimizer`) record.  The compiler knows no op and no tensor.

Passes run in the order of `PASSES`, each over the same `Graph`: a pass is a function ``(graph, target)`` that returns
nothing, and changes the graph by its methods, which keep readers, writers and spans up to date.  To add one, put it
there, with what says whether it is wanted, ``wanted(recording, target)``.  What passes may assume of a device is in its
`Target`; what they leave behind in memory that somebody holds is the same, to the bit, as what the recorded launches
did.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import cast

from ag.engine.backend import Backend
from ag.engine.buffer import Buffer, Device
from ag.engine.compile.copy_elimination import eliminate_copies
from ag.engine.compile.dead_code import eliminate_dead_launches
from ag.engine.compile.fold_scaling import fold_scaling
from ag.engine.compile.fuse_elementwise import fuse_elementwise
from ag.engine.compile.fuse_epilogues import fuse_epilogues
from ag.engine.compile.graph import Graph
from ag.engine.compile.memory_plan import plan_memory
from ag.engine.compile.ownership import settle
from ag.engine.compile.rematerialize import rematerialize
from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.engine.program import OPEN, Launch, Program, Recording
from ag.engine.target import Target
from ag.errors import CaptureError

__all__ = ["PASSES", "Pass", "compile_program", "record"]

Pass = Callable[[Graph, Target], None]
Wanted = Callable[[Recording, Target], bool]
OnUpload = Callable[[Array, DType, Device], Buffer | None]


def _always(recording: Recording, target: Target) -> bool:
    return True


PASSES: tuple[tuple[Pass, Wanted], ...] = (
    (fold_scaling, _always),
    (eliminate_copies, _always),
    (eliminate_dead_launches, _always),
    (rematerialize, lambda recording, target: recording.recompute),
    (fuse_elementwise, _always),
    (fuse_epilogues, lambda recording, target: target.epilogues),
    (plan_memory, _always),
)


def compile_program(recording: Recording, target: Target) -> list[Launch]:
    """Launches that leave the same values behind as those recorded, in whose place they come.

    Parameters
    ----------
    recording : Recording
        Closed.
    target : Target
        What the device wants.
    """
    with _no_collections():
        holders = settle(recording)  # who outlives the program is known, not guessed
        graph = Graph(recording.launches, holders)
        recording.launches.clear()
        for run_pass, is_wanted in PASSES:
            if is_wanted(recording, target):
                run_pass(graph, target)
        recording.launches += graph.launches()
        return recording.launches


@contextmanager
def _no_collections() -> Iterator[None]:
    """Let Python's garbage collector wait.

    It goes through all that lives whenever that has grown by some objects, so a program twice as long would take more
    than twice as long to compile; what the compiler leaves behind is freed without it.
    """
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def record(backend: Device | None, on_upload: OnUpload | None = None, recompute: bool = False,
           trial: bool = False, waits: bool = False) -> Iterator[Recording]:
    """Collect every launch that this thread makes inside.  Afterwards, `Recording.finished` gives the program.

    Parameters
    ----------
    backend : Device or None
        Who may work for it; None: the first device that does something.
    on_upload : callable, optional
        Asked for every host array that becomes a buffer inside; returns the buffer to use, or None, or raises.
    recompute : bool, optional
        Compute cheap results a second time rather than keep them in memory.
    trial : bool, optional
        Let the thread go on where it does what cannot be recorded; see `Recording.refuse`.
    waits : bool, optional
        Run no launch, as the program is to make them: see `Recording.catch_up`.  Otherwise they run, too.
    """
    recording, thread = Recording(on_upload, recompute, trial, waits), get_ident()
    if thread in OPEN:
        raise CaptureError("record: this thread is recording already; captured steps do not nest.")
    OPEN[thread] = recording
    try:
        if backend is not None:
            recording.works_on(backend)
        yield recording
    finally:
        OPEN.pop(thread, None)
        recording.close()
    recording.compiled = partial(_program, recording)


def _program(recording: Recording) -> Program:
    backend = cast(Backend, recording.backend)
    exact = backend.settings.precision == "highest"  # kernels of a lower precision take no epilogues
    target = backend.target._replace(epilogues=backend.target.epilogues and exact)
    return backend.program(compile_program(recording, target))
