"""Describe commands, their cost and their hazards, and fill Kompute's sequences with them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from math import ceil, inf, prod
from typing import NamedTuple, TypeVar

from ag.engine.backend import Meter
from ag.engine.backends.vulkan.kp_types import Algorithm, Sequence, Tensor
from ag.engine.backends.vulkan.limits import MOST_GROUPS as _MOST_GROUPS
from ag.engine.backends.vulkan.stream.timestamps import Stopwatch
from ag.errors import DeviceError

TRANSFER = "transfer"  # the kernel of copies, in a profile
_MULTIPLY_ADDS = 50e9  # per second; kernels on the integrated graphics of a laptop reach it: a fifth of its peak
_BYTES = 10e9  # per second; a third of two channels of DDR4
SECONDS_PER_BYTE = 2 / _BYTES  # of a copy, which reads it and writes it
_SECONDS = 0.1  # of a submission
_QUICKER = {"discrete": 8}  # kinds of devices of which the slowest are so much faster
_SLOWEST = 1 / 32  # of what is allowed at first: a measurement on a busy machine must not stop the device
MOST_COMMANDS = 256  # of a submission
_FIRST = 8
_VARIABLE = "AG_SUBMIT_MS"
_MOST_RANGES = 256  # beyond this, one barrier is cheaper than comparing with everything

Range = tuple[int, int]  # [start, end) in arena addresses


def seconds_of(multiply_adds: float, nbytes: float) -> float:
    """Estimate the seconds of a launch on a slow integrated device."""
    return multiply_adds / _MULTIPLY_ADDS + nbytes / _BYTES


class Budget:
    """Limit the cost of a submission on one device, by its kind; DeviceError for a wrong AG_SUBMIT_MS.

    A driver's watchdog ends a submission after 2 to 10 seconds, and the device with it.  `seconds_of` assumes a slow
    device, and `note` lowers the limit where submissions take long.  How commands are split changes no bits.
    """

    def __init__(self, kind: str) -> None:
        self.seconds = _asked() or _SECONDS * _QUICKER.get(kind, 1)  # the most, as `seconds_of` counts
        self._least = self.seconds * _SLOWEST
        self.long = 2 * _SECONDS if kind != "cpu" else inf  # a processor has no watchdog
        # Commands before an idle device is started.  A card then computes while the host records; a software device
        # would take the host's cores.
        self.first = _FIRST if kind != "cpu" else MOST_COMMANDS

    def note(self, cost: float, took: float) -> None:
        """Halve the limit if a costly submission has taken long."""
        if took > self.long and cost > self.seconds / 4:
            self.seconds = max(self.seconds / 2, self._least)


def _asked() -> float:
    """Return the seconds in AG_SUBMIT_MS; 0 if it is not set."""
    text = os.environ.get(_VARIABLE, "")
    try:
        found = float(text or 0) / 1000
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise DeviceError(f"{_VARIABLE} is {text!r}; it must be a number of milliseconds, such as 100, or not set.")
    return found


class HazardTracker:
    """Tell whether a launch needs a barrier: it may overlap with all launches since the last one.

    It needs one if it reads what another writes (RAW), or writes what another reads (WAR) or writes (WAW).
    """

    def __init__(self) -> None:
        self._reads: list[Range] = []
        self._writes: list[Range] = []

    def barrier(self) -> None:
        """Forget all ranges: a barrier was recorded, or a new command buffer begins with one."""
        self._reads.clear()
        self._writes.clear()

    def launch(self, reads: list[Range], writes: list[Range]) -> bool:
        """Note a launch; return whether it needs a barrier before it, which is noted, too."""
        needed = (
            len(self._reads) + len(self._writes) > _MOST_RANGES
            or _overlap(reads, self._writes)
            or _overlap(writes, self._writes)
            or _overlap(writes, self._reads)
        )
        if needed:
            self.barrier()
        self._reads += reads
        self._writes += writes
        return needed


def _overlap(some: list[Range], others: list[Range]) -> bool:
    for a, b in some:
        for c, d in others:
            if a < d and c < b:
                return True
    return False


class Command(NamedTuple):
    """One dispatch, or a part of one, which begins at a later workgroup than the `first`.

    A `whole` one cannot be split.
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
        sequence.dispatch(self.algorithm, self.push, *self.grid, barrier, *self.first, copies)

    def parts(self, most: float) -> list[Command]:
        """Split it into dispatches that cost at most so much, as far as possible; the bits are the same.

        Kernels number workgroups in a line, so the grid may have another shape: one axis, or rows if that is too long.
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
        return [self.kernel]


class Copy(NamedTuple):
    """A copy of a region (two offsets and a size in bytes), with a barrier if the `host` reads it."""

    source: Tensor
    target: Tensor
    region: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]
    host: bool = False

    @property
    def cost(self) -> float:
        return self.region[2] * SECONDS_PER_BYTE

    def parts(self, most: float) -> list[Copy]:
        """Split it into copies that cost at most so much, of whole pages but for the last."""
        source, target, nbytes = self.region
        size = max(4096, int(nbytes * most / self.cost) // 4096 * 4096)
        if self.cost <= most or nbytes <= size:
            return [self]
        return [self._replace(region=(source + i, target + i, min(size, nbytes - i))) for i in range(0, nbytes, size)]

    def record(self, sequence: Sequence, barrier: bool, copies: bool) -> None:
        assert copies
        sequence.copy(self.source, self.target, *self.region, barrier, self.host)

    @property
    def kernels(self) -> list[str]:
        return [TRANSFER, ""] if self.host else [TRANSFER]


class Check(NamedTuple):
    """An empty submission, which fails if the device was lost."""

    reads: list[Range]
    writes: list[Range]
    cost: float = 0.0

    def parts(self, _most: float) -> list[Check]:
        """Return it alone."""
        return [self]

    def record(self, sequence: Sequence, _barrier: bool, _copies: bool) -> None:
        sequence.to_host()

    @property
    def kernels(self) -> list[str]:
        return [""]


Operation = Command | Copy | Check
Kind = TypeVar("Kind", Command, Copy, Command | Copy)


class Recorded(NamedTuple):
    """A sequence that can be started, its commands and their cost; `stopwatch` makes events named after `kernels`."""

    sequence: Sequence
    kernels: list[str]
    stopwatch: Stopwatch | None
    commands: Collection[Operation]
    cost: float


def fill(commands: Collection[Operation], sequence: Sequence, to_host: bool, always: bool) -> int:
    """Replace the commands of an idle sequence; return the number of barriers.

    With `to_host` a last barrier lets the host read and write after a wait; with `always` each command has a barrier.
    An error of `kp` leaves the sequence unusable.
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
    return max(((command.cost, command.kernels[0]) for command in commands), default=(0.0, ""))[1] or "nothing"


_NONE: list[Sequence] = []  # shared by all batches before they start; then they get their own


class Batch:
    """Commands that start together, or a sequence that was recorded before."""

    __slots__ = ("began", "commands", "cost", "meter", "played", "recorded", "started", "timing", "waited_for")

    timing: object  # the kind of its timestamps, once started
    meter: Meter | None  # adds up its time
    began: float  # by `time.perf_counter`

    def __init__(self, recorded: Recorded | None = None, command: Operation | None = None) -> None:
        self.commands: list[Operation] = [] if command is None else [command]
        self.cost = 0.0
        self.recorded, self.played = recorded, recorded is not None  # a played sequence can be played again
        # The last sequence of its submission, once started, and once waited for.  All batches of one share both lists.
        self.started = self.waited_for = _NONE

    def touches(self, start: int, end: int) -> bool:
        """Return whether any command reads or writes between these addresses."""
        return any(a < end and start < b
                   for command in list(self.recorded.commands if self.recorded is not None else self.commands)
                   for a, b in (*command.reads, *command.writes))


def groups_of(commands: list[Kind], most: float, length: int) -> list[list[Kind]]:
    """Split commands, in order, into groups of at most so many that cost at most so much."""
    groups: list[list[Kind]] = []
    cost = 0.0
    for part in (part for command in commands for part in command.parts(most)):
        if not groups or len(groups[-1]) == length or cost + part.cost > most:
            groups.append([])
            cost = 0.0
        groups[-1].append(part)
        cost += part.cost
    return groups
