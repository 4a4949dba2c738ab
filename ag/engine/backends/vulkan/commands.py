"""What the recorder keeps: commands, sequences made of them, and batches of commands that start together.

Knows addresses and how a command puts itself into a sequence of Kompute, and no buffer or primitive; it starts nothing.
The backend makes the dispatches; the recorder keeps batches of these, and says when they go into a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ag.engine.backend import Meter
from ag.engine.backends.vulkan.hazards import Range
from ag.engine.backends.vulkan.kp_types import Algorithm, Sequence, Tensor
from ag.engine.backends.vulkan.timestamps import Stopwatch

__all__ = ["Batch", "Command", "Copy", "Recorded"]


class Command(NamedTuple):
    """One dispatch: its kernel's name, algorithm, push constants, grid, and the byte ranges it touches."""

    kernel: str
    algorithm: Algorithm
    push: bytes
    grid: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]

    def record(self, sequence: Sequence, barrier: bool) -> None:
        """Add it to a sequence."""
        sequence.dispatch(self.algorithm, self.push, *self.grid, barrier)

    @property
    def kernels(self) -> list[str]:
        """The kernel of every operation that it is."""
        return [self.kernel]


class Copy(NamedTuple):
    """A copy of a region (offsets in bytes, and how many), for the host to read if `host` makes a barrier for that."""

    operation: Callable[..., object]
    source: Tensor
    target: Tensor
    region: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]
    host: Callable[..., object] | None = None

    def record(self, sequence: Sequence, barrier: bool) -> None:
        """Add it to a sequence."""
        sequence.record(self.operation(self.source, self.target, [self.region], barrier))
        if self.host is not None:
            sequence.record(self.host(host=True))

    @property
    def kernels(self) -> list[str]:
        """The kernel of every operation that it is; a barrier has no event."""
        return ["transfer"] if self.host is None else ["transfer", ""]


class Recorded(NamedTuple):
    """A sequence that can be started, who makes events of its operations, if anybody, and their kernels for that."""

    sequence: Sequence
    kernels: list[str]
    stopwatch: Stopwatch | None


class Batch:
    """Commands that start together, or a sequence that was recorded before.

    Attributes
    ----------
    commands : list of Command or Copy
    recorded : Recorded or None
        The sequence that was made of them, or the other one, which can be `played` again.
    started, waited_for : list of Sequence
        The sequence, once it was started, and once it was waited for.
    timing, meter : object
        What the sequence has timestamps for, and who is told its time.
    """

    __slots__ = ("commands", "meter", "played", "recorded", "started", "timing", "waited_for")

    def __init__(self, recorded: Recorded | None = None) -> None:
        self.commands: list[Command | Copy] = []
        self.recorded, self.played = recorded, recorded is not None
        self.started: list[Sequence] = []
        self.waited_for: list[Sequence] = []
        self.timing: object = None
        self.meter: Meter | None = None
