"""Record commands into batches, submit them, and wait: only this module submits launches.

The last batch is open.  One queue runs in order, so a wait for a batch waits for all before it.  A signal's handler may
use the device in the middle of any call, so starting or waiting notes itself in the same operation (`Batch.started`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf, prod
from time import perf_counter, perf_counter_ns
from typing import NamedTuple, TypeVar

from ag.engine.backend import Event, Meter
from ag.engine.backends.shader.plans import MOST_GROUPS, seconds_of
from ag.engine.backends.vulkan.devices import DRIVERS
from ag.engine.backends.vulkan.kp import Algorithm, Manager, Sequence, Tensor, Words
from ag.engine.backends.vulkan.transfer_queue import TransferQueue
from ag.errors import AgError, ArenaError, DeviceError, milliseconds, switched_on

TRANSFER = "transfer"  # the kernel of copies, in a profile
_SECONDS_PER_BYTE = seconds_of(0, 2)  # of a copy, which reads it and writes it
_SECONDS = 0.1  # of a submission
_QUICKER = {"discrete": 8}  # kinds of devices of which the slowest are so much faster
_SLOWEST = 1 / 32  # of what is allowed at first: a measurement on a busy machine must not stop the device
MOST_COMMANDS = 256  # of a submission
_FIRST = 8
_MOST_RANGES = 256  # beyond this, one barrier is cheaper than comparing with everything
_MOST_IN_FLIGHT = 8
_GONE = suppress(ValueError)  # a signal's handler has removed the batch
_NO_ROOM = suppress(ArenaError)
_LONGEST = 512  # commands of a built sequence; most are shorter, as their cost is limited

Range = tuple[int, int]  # [start, end) in arena addresses


class Budget:
    """Limit the cost of a submission: a driver's watchdog ends one of 2 to 10 seconds, and the device with it."""

    def __init__(self, kind: str) -> None:
        # The most, as `seconds_of` counts.
        self.seconds = milliseconds("AG_SUBMIT_MS") / 1000 or _SECONDS * _QUICKER.get(kind, 1)
        self._least = self.seconds * _SLOWEST
        self.long = 2 * _SECONDS if kind != "cpu" else inf  # a processor has no watchdog
        # Commands before an idle device is started.  A card then computes while the host records; a software device
        # would take the host's cores.
        self.first = _FIRST if kind != "cpu" else MOST_COMMANDS

    def note(self, cost: float, took: float) -> None:
        """Halve the limit if a costly submission has taken long."""
        if took > self.long and cost > self.seconds / 4:
            self.seconds = max(self.seconds / 2, self._least)


class HazardTracker:
    """Tell whether a launch needs a barrier: one before writes what it reads, or touches what it writes."""

    def __init__(self) -> None:
        self._reads: list[Range] = []
        self._writes: list[Range] = []

    def launch(self, reads: list[Range], writes: list[Range]) -> bool:
        """Note a launch; return whether it needs a barrier before it, which is noted, too."""
        needed = (len(self._reads) + len(self._writes) > _MOST_RANGES or _overlap(reads, self._writes)
                  or _overlap(writes, self._writes) or _overlap(writes, self._reads))
        if needed:
            self._reads.clear()
            self._writes.clear()
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
    """One dispatch, or a part of one."""

    kernel: str
    algorithm: Algorithm
    push: bytes
    grid: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]
    cost: float = 0.0
    whole: bool = True  # cannot be split
    first: tuple[int, int] = (0, 0)  # workgroup

    def record(self, sequence: Sequence, barrier: bool, copies: bool) -> None:
        sequence.dispatch(self.algorithm, self.push, *self.grid, barrier, *self.first, copies)

    def parts(self, most: float) -> list[Command]:
        """Split it, with the same bits, into dispatches that cost at most so much: in a line, or in rows."""
        groups = prod(self.grid)
        if self.cost <= most or self.whole or groups == 1:
            return [self]
        wide = min(max(1, int(groups * most / self.cost)), MOST_GROUPS)
        if groups <= MOST_GROUPS:
            return [self._replace(grid=(count, 1, 1), first=(i, 0), cost=self.cost * count / groups)
                    for i in range(0, groups, wide) for count in [min(wide, groups - i)]]
        wide = max(wide, ceil(groups / MOST_GROUPS))
        high = max(1, int(groups * most / self.cost / wide))
        rows = ceil(groups / wide)
        return [self._replace(grid=(wide, count, 1), first=(0, i), cost=self.cost * count * wide / groups)
                for i in range(0, rows, high) for count in [min(high, rows - i)]]


class Copy(NamedTuple):
    """A copy of a region (two offsets and a size in bytes), with a barrier if the `host` reads it."""

    source: Tensor
    target: Tensor
    region: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]
    host: bool = False
    kernel: str = TRANSFER

    @property
    def cost(self) -> float:
        return self.region[2] * _SECONDS_PER_BYTE

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


class Check(NamedTuple):
    """An empty submission, which fails if the device was lost."""

    reads: list[Range]
    writes: list[Range]
    cost: float = 0.0
    kernel: str = ""

    def parts(self, _most: float) -> list[Check]:
        return [self]

    def record(self, sequence: Sequence, _barrier: bool, _copies: bool) -> None:
        sequence.to_host()


Operation = Command | Copy | Check
Kind = TypeVar("Kind", Command, Copy, Command | Copy)


class Recorded(NamedTuple):
    """A sequence that can be started, its commands and their cost; `stopwatch` makes events named after `kernels`."""

    sequence: Sequence
    kernels: list[str]
    stopwatch: Stopwatch | None
    commands: Collection[Operation]
    cost: float


@dataclass(frozen=True)
class Counter:
    bits: int  # of a reading that are valid; 0: the device has no timestamps
    period: float  # nanoseconds per tick

    def passed(self, since: int, until: int) -> int:
        """Return the ticks between two readings; 0 if the clock, that of a software driver, was set back."""
        ticks = (until - since) % (1 << self.bits)  # the counter may have started again at 0
        return ticks if 2 * ticks < 1 << self.bits else 0


class Stopwatch:
    """Note commands in `events` after they were waited for, each with the time by which it ended after the others."""

    def __init__(self, manager: Manager, counter: Counter, device: str, events: list[Event]) -> None:
        if not counter.bits:
            product = manager.get_device_properties()["device_name"]
            raise DeviceError(f"profile: {device} ({product}) has no timestamps; profile another device.")
        self._counter, self._device, self._events = counter, device, events
        before = perf_counter_ns()
        (self._last,) = manager.sequence(0, 1).eval().get_timestamps()
        self._origin = (before + perf_counter_ns()) // 2  # off by at most half the time of a submission
        self._ticks = 0

    def note(self, kernels: list[str], counts: list[int]) -> None:
        times = [self._host_time(count) for count in counts]
        for kernel, begin, end in zip(kernels, times, times[1:], strict=False):
            if kernel:
                self._events.append(Event(self._device, kernel, begin, end))

    def _host_time(self, count: int) -> int:
        passed = self._counter.passed(self._last, count)
        if passed:
            self._ticks += passed
            self._last = count
        return self._origin + round(self._ticks * self._counter.period)


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


class Recorder:
    def __init__(self, manager: Manager, name: str, budget: Budget) -> None:
        self._manager, self._faults = manager.bare, manager.faults
        self._name, self.budget = name, budget
        self._done = 0.0  # when a submission was last found to have ended
        self._barrier_always = switched_on("AG_BARRIER_ALL")  # for synchronization validation
        self._stopwatch: Stopwatch | None = None
        self._meter: Meter | None = None
        properties = manager.get_device_properties()
        self._counter = Counter(properties["timestamp_valid_bits"], properties["timestamp_period"])
        self.timestamps = self._counter.bits > 0
        self._idle: dict[object, list[Sequence]] = {}  # by kind of timestamps
        self._batches = deque([Batch()])  # not waited for yet, in order; the last is open
        self._most = budget.first  # commands of the open batch
        self._host_sees = manager.host_sees()
        self.beside = TransferQueue(manager)
        self.barriers = self.submits = 0
        self.changes = 0  # grows with each command, sequence, and upload beside them
        self.lost = False

    # -------------------------------------------------------------------------------------- commands

    def record(self, command: Operation) -> None:
        self.changes += 1
        batch = self._batches[-1]
        cost = batch.cost + command.cost
        if cost > self.budget.seconds:  # its parts need submissions of their own: all of them or none
            self._batches.extend([*[Batch(command=part) for part in command.parts(self.budget.seconds)], Batch()])
            self._start_if_there_is_room()
            return
        batch.cost = cost
        # A signal's handler may have submitted that batch meanwhile, so look up the open one again.
        self._batches[-1].commands.append(command)
        if len(batch.commands) >= self._most:
            self._most = min(2 * self._most, MOST_COMMANDS)
            self._start_if_there_is_room()

    def _start_if_there_is_room(self) -> None:
        """Submit; that there is no memory the next `wait` raises, as here the command would be recorded twice."""
        with _NO_ROOM:
            self.submit()

    def submit(self) -> None:
        """Start what was recorded; do not wait."""
        if DRIVERS.parent:
            raise DeviceError(DRIVERS.inheritance(self._name))
        if self._batches[-1].commands:
            self._batches.append(Batch())
        self._start()

    def _start(self) -> None:
        """Start all batches but the open one, in order and in few submissions."""
        while together := self._startable():
            while len(self._batches) > _MOST_IN_FLIGHT and self.in_flight >= _MOST_IN_FLIGHT:
                self._wait_oldest()
            started: list[Sequence] = []
            waited_for: list[Sequence] = []
            now = perf_counter()
            for batch in together:
                if batch.played:
                    self._wait_for_same(batch)
                if not batch.started:  # a signal's handler may have started it
                    batch.started, batch.waited_for = started, waited_for
                batch.timing, batch.meter, batch.began = self.timing, self._meter, now
            *before, last = [batch.recorded.sequence for batch in together if batch.recorded is not None]
            starting = map(type(last).eval_async_after, (last,), (before,))
            try:
                if not together[-1].started:
                    together[-1].started.extend(starting)
            except self._faults.errors as error:
                raise self._told(error, together[-1]) from error
            self.submits += 1

    def _startable(self) -> list[Batch]:
        """Return the batches of the next submission, in order, as many as the budget allows."""
        found: list[Batch] = []
        twice: set[int] = set()  # sequences, each of which a submission has once
        cost = 0.0
        for batch in list(self._batches):
            if batch.started or batch is self._batches[-1]:
                continue
            if batch.recorded is None:
                if not batch.commands:  # it was open, and empty, when others were added
                    with _GONE:
                        self._batches.remove(batch)
                    continue
                idle = self._idle.get(self.timing)
                batch.recorded = self.build(batch.commands, idle.pop() if idle else None)
            cost += batch.recorded.cost
            if found and (cost > self.budget.seconds or id(batch.recorded) in twice):
                break
            twice.add(id(batch.recorded))
            found.append(batch)
        return found

    def _wait_for_same(self, batch: Batch) -> None:
        """Wait for an earlier run of the same sequence, which cannot be in the queue twice."""
        for running in list(self._batches):
            if running is batch:
                return
            if running.recorded is batch.recorded:
                self._wait_for(running)

    def _wait_oldest(self) -> None:
        done = self._batches[0]
        if not done.started:  # a signal's handler has waited
            return
        if not done.waited_for:
            self._wait_for_submission(done)
        assert done.recorded is not None
        sequence, kernels, stopwatch, *_ = done.recorded
        counts: list[int] = []
        try:
            if self._batches[0] is done and (stopwatch is not None or done.meter is not None):
                counts = sequence.get_timestamps()
        except self._faults.errors as error:
            raise self._told(error, done) from error
        if self._batches[0] is not done:
            return
        self._batches.popleft()
        if not self._batches[0].started:
            self._most = self.budget.first
        if stopwatch is not None:
            stopwatch.note(kernels, counts)
        if done.meter is not None:
            begin, *_, end = counts
            done.meter.seconds += self._counter.passed(begin, end) * self._counter.period * 1e-9
        if not done.played and stopwatch is None:  # those have a timestamp per operation
            self._idle.setdefault(done.timing, []).append(sequence)

    def _wait_for_submission(self, done: Batch) -> None:
        """Wait for the oldest submission; lower the budget if it took long."""
        waiting = map(type(done.started[0]).eval_await, done.started)
        since = perf_counter()
        try:
            if not done.waited_for:
                done.waited_for.extend(waiting)
        except self._faults.errors as error:
            raise self._told(error, done) from error
        now = perf_counter()
        if now - since > self.budget.long / 2:
            took = now - max(done.began, self._done)
            if 2 * (now - since) > took:  # the host has waited for most of it
                self.budget.note(sum(batch.recorded.cost for batch in list(self._batches)
                                     if batch.started is done.started and batch.recorded is not None), took)
        self._done = now

    def _wait_for(self, batch: Batch) -> None:
        while batch in self._batches and batch.started:
            self._wait_oldest()

    def wait_for_users(self, staging: Tensor) -> None:
        for batch in reversed(list(self._batches)):  # waiting for the last is waiting for all
            if any(staging is command.source or staging is command.target for command in reversed(batch.commands)
                   if isinstance(command, Copy)):
                self.submit()
                self._wait_for(batch)
                return

    def forget(self) -> None:
        self.wait()
        self._idle.clear()
        self.beside.forget()

    @property
    def idle(self) -> bool:
        return len(self._batches) == 1 and not self._batches[0].commands

    def touches(self, start: int, end: int) -> bool:
        return self.beside.touches(start, end) or any(batch.touches(start, end) for batch in list(self._batches))

    def wait(self) -> None:
        self.submit()
        while self._batches[0].started:
            self._wait_oldest()
        try:
            self.beside.wait()
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error

    @property
    def in_flight(self) -> int:
        return sum(1 for batch in list(self._batches) if batch.started)

    # -------------------------------------------------------------------------------------- uploads beside launches

    def upload_beside(self, address: int, words: Words, segment: Tensor) -> int:
        """Start copying words beside launches; return how many, from the first: 0 if the last batch touches them."""
        if not self.beside.apart or self.timing is not None or self.idle:
            return 0
        self.submit()
        self.changes += 1
        changes = self.changes
        batches = list(self._batches)
        touching = [batch for batch in batches if batch.touches(address, address + words.nbytes)]
        if touching:
            behind = batches[batches.index(touching[-1]) + 1 :]
            if not any(batch.started for batch in behind):  # it is the last, or a handler's, not yet started
                return 0
            self._wait_for(touching[-1])  # it has mostly ended, and later ones keep the device busy
        try:
            self.beside.wait(address, address + words.nbytes)
            return self.beside.upload(address, words, segment, self, changes)
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error

    # -------------------------------------------------------------------------------------- timestamps

    @property
    def timing(self) -> object:
        """Return the kind of timestamps of new sequences: every command, both ends, or None, as they cost time."""
        return self._stopwatch or ("ends" if self._meter is not None else None)

    def _sequence(self, operations: int) -> Sequence:
        if self._stopwatch is not None:
            return self._manager.sequence(0, operations + 1)
        return self._manager.sequence() if self._meter is None else self._manager.sequence(0, 1)

    def retime(self, events: list[Event] | None) -> None:
        """Time every later command by the device and note it in `events`; None ends that."""
        self.wait()
        self._idle.clear()
        self._stopwatch = None
        if events is not None:
            try:
                self._stopwatch = Stopwatch(self._manager, self._counter, self._name, events)
            except self._faults.errors as error:
                raise self._told(error, Batch()) from error

    def meter(self, meter: Meter | None) -> None:
        """Add the time of later commands to this meter, after a wait for them; None: to no meter."""
        if meter is not self._meter and self.timestamps:
            self.submit()
            self._meter = meter

    def _told(self, error: Exception, batch: Batch) -> AgError:
        """Return the error to raise for one of kp's; if the device was lost, the oldest submission is at fault."""
        if not isinstance(error, self._faults.lost):
            return self._faults.told(error)
        self.lost = True
        oldest = self._batches[0] if self._batches[0].started else batch
        commands = [command for other in self._batches if other.started is oldest.started and other.recorded is not None
                    for command in other.recorded.commands]
        self._batches = deque([Batch()])
        costliest = max(commands, key=lambda command: command.cost, default=None)
        return self._faults.told(error, costliest.kernel if costliest and costliest.kernel else "nothing",
                                 self.budget.seconds)

    # -------------------------------------------------------------------------------------- programs

    def build(self, commands: Collection[Operation], unused: Sequence | None = None) -> Recorded:
        """Make a sequence that can be played many times; an error of `kp` leaves an unused one unusable."""
        kernels = [] if self._stopwatch is None else [
            kernel for c in commands for kernel in ([c.kernel, ""] if isinstance(c, Copy) and c.host else [c.kernel])]
        tracker, copies = HazardTracker(), any(isinstance(command, Copy) for command in commands)
        try:
            sequence = unused or self._sequence(len(kernels) - self._host_sees)  # the last event has the last barrier
            sequence.clear()
            for i, command in enumerate(commands):
                barrier = tracker.launch(command.reads, command.writes) or i == 0 or self._barrier_always
                self.barriers += barrier
                command.record(sequence, barrier, copies or i == 0)  # the first waits for other sequences' copies
            if self._host_sees:
                sequence.to_host()  # so that the host may read and write after a wait
            sequence.end()
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error
        return Recorded(sequence, kernels, self._stopwatch, commands, sum(command.cost for command in commands))

    def runs(self, recorded: Recorded) -> bool:
        return recorded in [batch.recorded for batch in list(self._batches)]

    def build_all(self, commands: list[Kind], old: list[Recorded] | None = None) -> list[Recorded]:
        """Make sequences that each fit a submission, perhaps reusing idle old ones."""
        groups = groups_of(commands, self.budget.seconds, _LONGEST)
        if old and len(old) == len(groups) == 1 and old[0].stopwatch is None:
            return [self.build(groups[0], old[0].sequence)]
        return [self.build(some) for some in groups]

    def finish(self, recorded: Recorded) -> None:
        for batch in reversed(list(self._batches)):
            if batch.recorded is recorded:
                if not batch.started:
                    self.submit()
                self._wait_for(batch)
                return

    def enqueue(self, sequences: list[Recorded]) -> None:
        """Queue built sequences behind everything recorded so far, for the next submission."""
        self.changes += 1
        self._batches.extend([*map(Batch, sequences), Batch()])  # all of them or none

    def play(self, sequences: list[Recorded]) -> None:
        self.enqueue(sequences)
        self._start_if_there_is_room()
