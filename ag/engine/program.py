"""Launches, recordings of them, and programs: recordings that can be run again.

`ag.engine.backend` says what backends promise about them; `ag.engine.compile` turns a recording into a program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import ReferenceType

from ag.engine.buffer import Buffer
from ag.engine.dtype import DType
from ag.engine.primitive import Array, Params, Primitive
from ag.errors import CaptureError

__all__ = ["Launch", "Program", "Recording", "held_bytes"]


@dataclass(frozen=True)
class Launch:
    """One launch that was recorded.

    Attributes
    ----------
    primitive : Primitive
    buffers : tuple of Buffer
        All operands, in the order of the reference.
    params : dict
    fresh : bool
        Whether the outputs were allocated for this launch.
    """

    primitive: Primitive
    buffers: tuple[Buffer, ...]
    params: Params
    fresh: bool

    @property
    def copies(self) -> bool:
        """Whether the output is the first input, element for element."""
        if self.primitive.copies:
            return True
        neutral = self.primitive.neutral
        return neutral is not None and self.buffers[2].constant == neutral and (
            self.buffers[0].shape == self.buffers[1].shape)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """What it works on: all buffers but the outputs."""
        return self.buffers[self.primitive.outputs :]

    @property
    def written(self) -> tuple[Buffer, ...]:
        """Outputs and operands updated in place; what is multiplied with the constant 1 stays as it is."""
        _, scaled, number = self.primitive.scaling or (None, -1, 0)
        kept = scaled if self.buffers[number].constant == 1.0 else -1
        updated = tuple(self.buffers[i] for i in self.primitive.updates if i != kept)
        return self.buffers[: self.primitive.outputs] + updated


class Program(Protocol):
    """Recorded launches that can be run again.

    Attributes
    ----------
    launches : int
        Number of launches in one run.
    nbytes : int
        Arena bytes the program keeps for itself.
    """

    @property
    def launches(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def run(self) -> None:
        """Launch everything again, in order; does not wait."""

    def close(self) -> None:
        """Let go of the memory; the program cannot run any more."""


@dataclass
class Recording:
    """An open recording; `program` is there once it is closed.

    Attributes
    ----------
    on_upload : callable or None
        Asked for every host array that becomes a buffer while recording; returns the buffer to use, or raises.
    guards : list of callable
        Called before every replay; they raise if something that the recording depends on has changed.
    value_checks : list of (Buffer, callable)
        Called with the host values that a replay puts into that buffer; they raise if the values are not allowed.
    cleared : set of int
        Tensors (by ``id``) whose gradient is set back inside the recording.
    launches : list of Launch
        What was launched so far; once it is compiled, what the program launches.
    views : list of weak references
        Views of the device's buffers that were made meanwhile.
    recompute : bool
        Whether its program may compute cheap results twice to save memory.
    writes : list of Buffer
        What the program writes and others hold; whoever runs it calls ``note_written(*recording.writes)`` before.
    """

    on_upload: Callable[[Array, DType], Buffer | None] | None = None
    guards: list[Callable[[], object]] = field(default_factory=list)
    value_checks: list[tuple[Buffer, Callable[[Array], None]]] = field(default_factory=list)
    cleared: set[int] = field(default_factory=set)
    launches: list[Launch] = field(default_factory=list)
    views: list[ReferenceType[Buffer]] = field(default_factory=list)
    recompute: bool = False
    writes: list[Buffer] = field(default_factory=list)
    program: Program | None = None

    def finished(self) -> Program:
        """The program; only after the recording was closed without an error."""
        if self.program is None:
            raise CaptureError("recording: it is still open or failed; leave its `with` block first.")
        return self.program


def held_bytes(launches: list[Launch]) -> int:
    """Arena bytes of all blocks that launches work on."""
    return sum({b.block.address: b.block.nbytes for launch in launches for b in launch.buffers}.values())
