"""The command stream: the only file that makes sequences of Kompute of commands, submits them and waits.

Commands go into an open batch; `submit` makes a sequence of it and
starts that, and nothing waits until a host needs a value.  Batches have tickets, growing numbers; waiting for one waits
for everything before it too, as one queue runs in order.  While a profile is active,
`ag.engine.backends.vulkan.stream.timestamps` makes the sequences, and runs an empty one to set its clock.  A barrier is
recorded only where the hazard tracker asks for one, and at the start of every sequence; and at its end, where the host
sees the device's memory and may read and write there what was waited for.  Knows addresses and commands,
and no buffer or primitive; the Vulkan backend calls it.

An interrupt may come anywhere, and a signal's handler may use the device in the middle of a call.  So a command is in
the books before anything is done with it: the batches, of which the last is open, hold all that was not waited for, in
order.  Whoever comes next starts what was not started.  That sequences were started, or waited for, is noted by the
same operation that does it (`Batch.started`, `Batch.waited_for`), as nothing interrupts that: batches of one submission
have these lists in common.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from time import perf_counter

from ag.engine.backend import Event, Meter
from ag.engine.backends.vulkan.faults import Faults
from ag.engine.backends.vulkan.kp_types import Manager, Sequence, Tensor, Words
from ag.engine.backends.vulkan.loader import DRIVERS, kompute
from ag.engine.backends.vulkan.stream.commands import Batch, Copy, Kind, Operation, Recorded, costliest, fill, groups_of
from ag.engine.backends.vulkan.stream.cost import MOST_COMMANDS, Budget
from ag.engine.backends.vulkan.stream.timestamps import Counter, Stopwatch
from ag.engine.backends.vulkan.stream.transfer_queue import TransferQueue
from ag.errors import AgError, ArenaError

__all__ = ["Recorder"]

_MOST_IN_FLIGHT = 8
_GONE = suppress(ValueError)  # of a batch that a signal's handler has removed
_NO_ROOM = suppress(ArenaError)
_LONGEST = 512  # commands of a sequence that is played; what they cost cuts most before


class Recorder:
    """Command stream of one device.

    Parameters
    ----------
    manager : kp.Manager
    name : str
        The device's name, for messages.
    budget : Budget
        How much goes into a submission.
    """

    def __init__(self, manager: Manager, name: str, budget: Budget) -> None:
        self._manager = manager
        self._name = name
        self.budget = budget
        self._done = 0.0  # when a submission was last found to have ended
        self._faults = Faults(kompute(), name)
        self._barrier_always = os.environ.get("AG_BARRIER_ALL") == "1"  # for synchronization validation
        self._stopwatch: Stopwatch | None = None
        self._meter: Meter | None = None
        properties = manager.get_device_properties()
        self._counter = Counter(properties["timestamp_valid_bits"], properties["timestamp_period"])
        self.timestamps = self._counter.bits > 0
        self._idle: dict[object, list[Sequence]] = {}  # by what they have timestamps for
        self._batches = deque([Batch()])  # what was not waited for, in order; the last is open
        self._most = budget.first  # commands of the open batch
        self._host_sees = manager.host_sees()
        self.beside = TransferQueue(manager)
        self.barriers = self.submits = 0
        self.changes = 0  # grows with whatever is recorded, played or uploaded beside that
        self.lost = False

    # -------------------------------------------------------------------------------------- commands

    def record(self, command: Operation) -> None:
        """Have a command run after all before it."""
        self.changes += 1
        batch = self._batches[-1]
        cost = batch.cost + command.cost
        if cost > self.budget.seconds:
            self._record_costly(command)
            return
        batch.cost = cost
        # Looked up again: if a signal's handler has submitted that batch meanwhile, another one is open now.
        self._batches[-1].commands.append(command)
        if len(batch.commands) >= self._most:
            self._most = min(2 * self._most, MOST_COMMANDS)
            self._start_if_there_is_room()

    def _record_costly(self, command: Operation) -> None:
        """`record`, in submissions of its own: all of its parts or none."""
        self._batches.extend([*[Batch(command=part) for part in command.parts(self.budget.seconds)], Batch()])
        self._start_if_there_is_room()

    def _start_if_there_is_room(self) -> None:
        """`submit`, for who has recorded already: where there is no memory, whoever submits next tries again.

        Who waits is told of that.  Told of it here, one would call again, and what was recorded would run twice.
        """
        with _NO_ROOM:
            self.submit()

    def submit(self) -> None:
        """Start what was recorded; does not wait."""
        DRIVERS.check_not_inherited(self._name)
        if self._batches[-1].commands:
            self._batches.append(Batch())
        self._start()

    def _start(self) -> None:
        """Start all batches but the open one, in order, as far as they were not, in as few submissions as may be."""
        while together := self._startable():
            while len(self._batches) > _MOST_IN_FLIGHT and self.in_flight >= _MOST_IN_FLIGHT:
                self._wait_oldest()
            started: list[Sequence] = []
            waited_for: list[Sequence] = []
            now = perf_counter()
            for batch in together:
                if batch.played:
                    self._wait_for_same(batch)
                if not batch.started:  # by a signal's handler
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
        """What the next submission has: batches in order that were not started, as many as the budget allows."""
        found: list[Batch] = []
        twice: set[int] = set()  # what would be in the submission twice
        cost = 0.0
        for batch in list(self._batches):
            if batch.started or batch is self._batches[-1]:
                continue
            if batch.recorded is None:
                if not batch.commands:  # it was open, and empty, when others were added
                    with _GONE:
                        self._batches.remove(batch)
                    continue
                batch.recorded = self.build(batch.commands, self._unused())
            cost += batch.recorded.cost
            if found and (cost > self.budget.seconds or id(batch.recorded) in twice):
                break
            twice.add(id(batch.recorded))
            found.append(batch)
        return found

    def _wait_for_same(self, batch: Batch) -> None:
        """One command buffer cannot be in the queue twice."""
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
        if not done.played and stopwatch is None:  # which has a timestamp for each of its operations
            self._idle.setdefault(done.timing, []).append(sequence)

    def _wait_for_submission(self, done: Batch) -> None:
        """Wait for the oldest submission, and note whether it took long."""
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
            if 2 * (now - since) > took:  # and the host has waited for most of that
                self.budget.note(sum(batch.recorded.cost for batch in list(self._batches)
                                     if batch.started is done.started and batch.recorded is not None), took)
        self._done = now

    def _wait_for(self, batch: Batch) -> None:
        while batch in self._batches and batch.started:
            self._wait_oldest()

    def wait_for_users(self, staging: Tensor) -> None:
        """Have all copies to or from a tensor end that were recorded."""
        for batch in reversed(list(self._batches)):  # for the last is for all
            if any(staging is command.source or staging is command.target for command in reversed(batch.commands)
                   if isinstance(command, Copy)):
                self.submit()
                self._wait_for(batch)
                return

    @property
    def idle(self) -> bool:
        """Whether all was waited for that was recorded."""
        return len(self._batches) == 1 and not self._batches[0].commands

    def touches(self, start: int, end: int) -> bool:
        """Whether anything that was recorded, and was not waited for, reads or writes between these addresses."""
        return self.beside.touches(start, end) or any(batch.touches(start, end) for batch in list(self._batches))

    def wait(self) -> None:
        """Submit, and wait for everything."""
        self.submit()
        while self._batches[0].started:
            self._wait_oldest()
        try:
            self.beside.wait()
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error

    @property
    def in_flight(self) -> int:
        """Number of submissions not yet waited for."""
        return sum(1 for batch in list(self._batches) if batch.started)

    # -------------------------------------------------------------------------------------- uploads beside launches

    def upload_beside(self, address: int, words: Words, segment: Tensor) -> int:
        """Start copying words of the host to an address in a segment, beside what the device does.

        How many are on their way, from the first.  None if it does nothing, or does something last that touches them,
        or somebody wants to know how long copies take.  What touches them and is followed by others is waited for: most
        often it has ended, and the others keep the device busy.
        """
        if not self.beside.apart or self.timing is not None or self.idle:
            return 0
        self.submit()
        self.changes += 1
        changes = self.changes
        batches = list(self._batches)
        touching = [batch for batch in batches if batch.touches(address, address + words.nbytes)]
        if touching:
            behind = batches[batches.index(touching[-1]) + 1 :]
            if not any(batch.started for batch in behind):  # then it is the last, or a handler's that was not started
                return 0
            self._wait_for(touching[-1])
        try:
            self.beside.wait(address, address + words.nbytes)
            return self.beside.upload(address, words, segment, self, changes)
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error

    # -------------------------------------------------------------------------------------- timestamps

    @property
    def timing(self) -> object:
        """What sequences made now have timestamps for: every command, both ends, or nothing, as they cost time."""
        return self._stopwatch or ("ends" if self._meter is not None else None)

    def _unused(self) -> Sequence | None:
        """A sequence to record into that has run."""
        idle = self._idle.get(self.timing)
        return idle.pop() if idle else None

    def _sequence(self, operations: int) -> Sequence:
        """A new sequence for so many operations, with the timestamps that somebody asks for."""
        if self._stopwatch is not None:
            return self._stopwatch.sequence(operations)
        return self._manager.sequence() if self._meter is None else self._manager.sequence(0, 1)

    def retime(self, events: list[Event] | None) -> None:
        """From now on note every command in `events`, timed by the device; None ends that."""
        self.wait()
        self._idle.clear()
        self._stopwatch = None
        if events is not None:
            try:
                self._stopwatch = Stopwatch(self._manager, self._counter, self._name, events)
            except self._faults.errors as error:
                raise self._told(error, Batch()) from error

    def meter(self, meter: Meter | None) -> None:
        """Have the time of what is recorded from now on added to this meter when it was waited for; None: to none."""
        if meter is not self._meter and self.timestamps:
            self.submit()
            self._meter = meter

    def _told(self, error: Exception, batch: Batch) -> AgError:
        """The error to raise for one of kp's; `batch` was to be started or waited for.

        Where the device was lost, the oldest that runs is at fault.
        """
        if not self._faults.of_a_lost_device(error):
            return self._faults.told(error)
        self.lost = True
        oldest = self._batches[0] if self._batches[0].started else batch
        commands = [command for other in self._batches if other.started is oldest.started and other.recorded is not None
                    for command in other.recorded.commands]
        self._batches = deque([Batch()])
        return self._faults.told(error, costliest(commands), self.budget.seconds)

    # -------------------------------------------------------------------------------------- programs

    def build(self, commands: Collection[Operation], unused: Sequence | None = None) -> Recorded:
        """A sequence that can be played many times."""
        kernels = [] if self._stopwatch is None else [kernel for command in commands for kernel in command.kernels]
        sequence = unused or self._sequence(len(kernels) - self._host_sees)  # the last event has the last barrier
        try:
            self.barriers += fill(commands, sequence, self._host_sees, self._barrier_always)
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error
        return Recorded(sequence, kernels, self._stopwatch, commands, sum(command.cost for command in commands))

    def runs(self, recorded: Recorded) -> bool:
        """Whether it was started and not waited for, as far as anybody has looked."""
        return recorded in [batch.recorded for batch in list(self._batches)]

    def build_all(self, commands: list[Kind], old: list[Recorded] | None = None) -> list[Recorded]:
        """Sequences that each fit a submission, perhaps in place of old ones, of which none runs."""
        groups = groups_of(commands, self.budget.seconds, _LONGEST)
        if old and len(old) == len(groups) == 1 and old[0].stopwatch is None:
            return [self.build(groups[0], old[0].sequence)]
        return [self.build(some) for some in groups]

    def finish(self, recorded: Recorded) -> None:
        """Have a sequence end, if it runs."""
        for batch in reversed(list(self._batches)):
            if batch.recorded is recorded:
                if not batch.started:
                    self.submit()
                self._wait_for(batch)
                return

    def enqueue(self, sequences: list[Recorded]) -> None:
        """Have built sequences run after everything recorded so far, as soon as anybody submits."""
        self.changes += 1
        self._batches.extend([*map(Batch, sequences), Batch()])  # all or none of them

    def play(self, sequences: list[Recorded]) -> None:
        """Start built sequences after everything recorded so far; does not wait."""
        self.enqueue(sequences)
        self._start_if_there_is_room()
