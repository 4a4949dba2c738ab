"""What a recording goes through on its way to a program: all passes, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile.copy_elimination import without_copies
from ag.engine.compile.dead_code import without_unread
from ag.engine.compile.fold_scaling import with_factors
from ag.engine.compile.fuse_elementwise import with_chains
from ag.engine.compile.fuse_epilogues import with_epilogues
from ag.engine.compile.memory_plan import share_memory
from ag.engine.compile.rematerialize import rematerialize
from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.engine.program import Launch, Recording

__all__ = ["optimize", "record"]


@contextmanager
def record(backend: Backend, on_upload: Callable[[Array, DType], Buffer | None] | None = None,
           recompute: bool = False) -> Iterator[Recording]:
    """Collect every launch made inside into a program (they also run); it may compute things twice to save memory."""
    recording = Recording(on_upload)
    with backend.collecting(recording):
        yield recording
    target = backend.target
    optimize(recording.launches, recompute=recompute, chains_from=target.fuse_from,
             epilogues=target.epilogues and backend.precision == "highest",  # the other kernels have none
             rest=target.rest)
    recording.program = backend.program(recording.launches)


def optimize(launches: list[Launch], *, recompute: bool, chains_from: int, epilogues: bool, rest: int) -> None:
    """Let launches leave the same values behind as those recorded, with less work and in less memory.

    Parameters
    ----------
    launches : list of Launch
        In the order in which they were made; changed in place, as whoever holds another list holds its buffers.
    recompute : bool
        Make cheap launches twice where that saves memory.
    chains_from : int
        Elements from which on elementwise launches become chains.
    epilogues : bool
        Whether products of matrices take elementwise functions of their results with them.
    rest : int
        For how many launches memory rests before it is used again.
    """
    launches[:] = with_factors(launches)
    launches[:] = without_copies(launches)
    launches[:] = without_unread(launches)
    if recompute:
        rematerialize(launches)
    launches[:] = with_chains(launches, chains_from)
    if epilogues:
        launches[:] = with_epilogues(launches)
    share_memory(launches, rest)
