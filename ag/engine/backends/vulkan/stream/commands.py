"""What the recorder keeps: commands, sequences made of them, and batches of commands that start together.

Knows addresses, what a command costs, and how it puts itself into a sequence of Kompute or is made in parts; no buffer
or primitive.  It starts nothing.  The backend makes the dispatches; the recorder keeps batches of these, and says when
they go into a sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import ceil, prod
from typing import NamedTuple, TypeVar

from ag.engine.backend import Meter
from ag.engine.backends.vulkan.kp_types import Algorithm, Sequence, Tensor
from ag.engine.backends.vulkan.limits import MOST_GROUPS as _MOST_GROUPS
from ag.engine.backends.vulkan.stream.cost import SECONDS_PER_BYTE
from ag.engine.backends.vulkan.stream.hazards import HazardTracker, Range
from ag.engine.backends.vulkan.stream.timestamps import Stopwatch

__all__ = ["TRANSFER", "Batch", "Check", "Command", "Copy", "Kind", "Operation", "Recorded", "costliest", "fill",
           "groups_of"]

TRANSFER = "transfer"  # what copies are in a profile


class Command(NamedTuple):
    """One dispatch: its kernel's name, algorithm, push constants, grid, the byte ranges it touches, and what it costs.

    If it is `whole`, it can only be made at once.  The first workgroup of a part of a dispatch is not number 0.
    """

    kernel: str
    algorithm: Algorithm
    push: bytes
    grid: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]
    cost: float = 0.0
    whole: bool = True
    first: tuple[int, int] = (0, 0)

    def record(self, sequence: Sequence, barrier: bool, copies: bool) -> None:
        """Add it to a sequence, after a barrier if need be, which is for copies, too, or for launches only."""
        sequence.dispatch(self.algorithm, self.push, *self.grid, barrier, *self.first, copies)

    def parts(self, most: float) -> list[Command]:
        """The same in dispatches of which none costs more, as far as that is possible.

        Every workgroup does what it would have done, so the bits are the same.  Kernels number them in a line, so the
        grid may be another: one axis, or rows of workgroups if there are more than an axis has.
        """
        groups = prod(self.grid)
        if self.cost <= most or self.whole or groups == 1:
            return [self]
        wide = min(max(1, int(groups * most / self.cost)), _MOST_GROUPS)
        if groups <= _MOST_GROUPS:
            return [self._replace(grid=(count, 1, 1), first=(i, 0), cost=self.cost * count / groups)
                    for i in range(0, groups, wide) for count in [min(wide, groups - i)]]
        wide = max(wide, ceil(groups / _MOST_GROUPS))
        high = max(1, int(groups * most / self.cost / wide))
        rows = ceil(groups / wide)
        return [self._replace(grid=(wide, count, 1), first=(0, i), cost=self.cost * count * wide / groups)
                for i in range(0, rows, high) for count in [min(high, rows - i)]]

    @property
    def kernels(self) -> list[str]:
        """The kernel of every operation that it is."""
        return [self.kernel]


class Copy(NamedTuple):
    """A copy of a region (offsets in bytes, and how many), with a barrier for the `host` if that is to read it."""

    source: Tensor
    target: Tensor
    region: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]
    host: bool = False

    @property
    def cost(self) -> float:
        """Seconds, as `Command` counts them."""
        return self.region[2] * SECONDS_PER_BYTE

    def parts(self, most: float) -> list[Copy]:
        """The same in copies of which none costs more; whole pages, but for the last."""
        source, target, nbytes = self.region
        size = max(4096, int(nbytes * most / self.cost) // 4096 * 4096)
        if self.cost <= most or nbytes <= size:
            return [self]
        return [self._replace(region=(source + i, target + i, min(size, nbytes - i))) for i in range(0, nbytes, size)]

    def record(self, sequence: Sequence, barrier: bool, copies: bool) -> None:
        """Add it to a sequence, after a barrier if need be, which is always for `copies`, too."""
        assert copies
        sequence.copy(self.source, self.target, *self.region, barrier, self.host)

    @property
    def kernels(self) -> list[str]:
        """The kernel of every operation that it is; a barrier has no event."""
        return [TRANSFER, ""] if self.host else [TRANSFER]


class Check(NamedTuple):
    """Nothing to do: a submission that tells whether the device is still there."""

    reads: list[Range]
    writes: list[Range]
    cost: float = 0.0

    def parts(self, _most: float) -> list[Check]:
        """It is made at once."""
        return [self]

    def record(self, sequence: Sequence, _barrier: bool, _copies: bool) -> None:
        """Add it to a sequence."""
        sequence.to_host()

    @property
    def kernels(self) -> list[str]:
        """The kernel of every operation that it is; a barrier has no event."""
        return [""]


Operation = Command | Copy | Check
Kind = TypeVar("Kind", Command, Copy, Command | Copy)


class Recorded(NamedTuple):
    """A sequence that can be started, who makes events of its operations, if anybody, their kernels for that, the
    commands in it, and what they cost together.
    """

    sequence: Sequence
    kernels: list[str]
    stopwatch: Stopwatch | None
    commands: Collection[Operation]
    cost: float


def fill(commands: Collection[Operation], sequence: Sequence, to_host: bool, always: bool) -> int:
    """Record commands into a sequence, in place of what it has; how many barriers that takes.

    Parameters
    ----------
    commands : collection of Operation
    sequence : kp.Sequence
        One that does not run.
    to_host : bool
        Whether the host may read and write what the device did as soon as that was waited for.
    always : bool
        Whether there is a barrier before each, needed or not.

    Raises
    ------
    kp.OutOfMemoryError, kp.Error
        The sequence is of no use then.
    """
    tracker, barriers = HazardTracker(), 0
    copies = any(isinstance(command, Copy) for command in commands)
    sequence.clear()
    for i, command in enumerate(commands):
        barrier = tracker.launch(command.reads, command.writes) or i == 0 or always
        barriers += barrier
        command.record(sequence, barrier, copies or i == 0)  # the first waits for other sequences' copies
    if to_host:
        sequence.to_host()
    sequence.end()
    return barriers


def costliest(commands: Iterable[Operation]) -> str:
    """The kernel of the command that costs most."""
    return max(((command.cost, command.kernels[0]) for command in commands), default=(0.0, ""))[1] or "nothing"


_NONE: list[Sequence] = []  # of all batches that were not started; they are given others then


class Batch:
    """Commands that start together, or a sequence that was recorded before.

    Attributes
    ----------
    commands : list of Operation
    cost : float
        Of all commands, in seconds.
    recorded : Recorded or None
        The sequence that was made of them, or the other one, which can be `played` again.
    started, waited_for : list of Sequence
        The last sequence of its submission, once that was started, and once it was waited for; the same two lists for
        all batches of a submission.
    timing, meter : object
        What the sequence has timestamps for, and who is told its time, once it was started.
    began : float
        When that was, by `time.perf_counter`.
    """

    __slots__ = ("began", "commands", "cost", "meter", "played", "recorded", "started", "timing", "waited_for")

    timing: object
    meter: Meter | None
    began: float

    def __init__(self, recorded: Recorded | None = None, command: Operation | None = None) -> None:
        self.commands: list[Operation] = [] if command is None else [command]
        self.cost = 0.0
        self.recorded, self.played = recorded, recorded is not None
        self.started = self.waited_for = _NONE

    def touches(self, start: int, end: int) -> bool:
        """Whether any command reads or writes between these addresses."""
        return any(a < end and start < b
                   for command in list(self.recorded.commands if self.recorded is not None else self.commands)
                   for a, b in (*command.reads, *command.writes))


def groups_of(commands: list[Kind], most: float, length: int) -> list[list[Kind]]:
    """Commands in their order, in groups of at most so many that cost at most so much, where none alone costs more."""
    groups: list[list[Kind]] = []
    cost = 0.0
    for part in (part for command in commands for part in command.parts(most)):
        if not groups or len(groups[-1]) == length or cost + part.cost > most:
            groups.append([])
            cost = 0.0
        groups[-1].append(part)
        cost += part.cost
    return groups
