"""Record commands into batches, submit them, and wait: only this module submits launches.

The last batch is open; all others were submitted, or will be by the next `submit`.  One queue runs in order, so a wait
for a batch waits for all before it.  A signal's handler may use the device in the middle of any call.  So a command is
in a batch before anything else happens, and starting or waiting notes itself in the same operation (`Batch.started`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from time import perf_counter

from ag.engine.backend import Event, Meter
from ag.engine.backends.vulkan.kp_types import Manager, Sequence, Tensor, Words
from ag.engine.backends.vulkan.loader import DRIVERS, Faults, kompute
from ag.engine.backends.vulkan.stream.commands import (
    MOST_COMMANDS,
    Batch,
    Budget,
    Copy,
    Kind,
    Operation,
    Recorded,
    costliest,
    fill,
    groups_of,
)
from ag.engine.backends.vulkan.stream.timestamps import Counter, Stopwatch
from ag.engine.backends.vulkan.stream.transfer_queue import TransferQueue
from ag.errors import AgError, ArenaError

_MOST_IN_FLIGHT = 8
_GONE = suppress(ValueError)  # a signal's handler has removed the batch
_NO_ROOM = suppress(ArenaError)
_LONGEST = 512  # commands of a built sequence; most are shorter, as their cost is limited


class Recorder:
    """The command stream of one device."""

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
        if cost > self.budget.seconds:
            self._record_costly(command)
            return
        batch.cost = cost
        # A signal's handler may have submitted that batch meanwhile, so look up the open one again.
        self._batches[-1].commands.append(command)
        if len(batch.commands) >= self._most:
            self._most = min(2 * self._most, MOST_COMMANDS)
            self._start_if_there_is_room()

    def _record_costly(self, command: Operation) -> None:
        """Add a command whose parts need submissions of their own: all of them or none."""
        self._batches.extend([*[Batch(command=part) for part in command.parts(self.budget.seconds)], Batch()])
        self._start_if_there_is_room()

    def _start_if_there_is_room(self) -> None:
        """Submit, unless there is no memory: the next `wait` raises that.

        Raised here, the caller would try again, and record its command twice.
        """
        with _NO_ROOM:
            self.submit()

    def submit(self) -> None:
        """Start what was recorded; do not wait."""
        DRIVERS.check_not_inherited(self._name)
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
                batch.recorded = self.build(batch.commands, self._unused())
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

    @property
    def idle(self) -> bool:
        return len(self._batches) == 1 and not self._batches[0].commands

    def touches(self, start: int, end: int) -> bool:
        """Return whether a command that was not waited for reads or writes between these addresses."""
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
        """Start copying words to an address in a segment, beside launches; return how many, from the first.

        It is 0 if there is no second queue, the device is idle, copies are timed, or the last batch touches the words.
        An earlier batch that touches them is waited for: it has mostly ended, and later ones keep the device busy.
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
            if not any(batch.started for batch in behind):  # it is the last, or a handler's, not yet started
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
        """Return the kind of timestamps of new sequences: every command, both ends, or None, as they cost time."""
        return self._stopwatch or ("ends" if self._meter is not None else None)

    def _unused(self) -> Sequence | None:
        idle = self._idle.get(self.timing)
        return idle.pop() if idle else None

    def _sequence(self, operations: int) -> Sequence:
        if self._stopwatch is not None:
            return self._stopwatch.sequence(operations)
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
        """Return the error to raise for one of kp's while `batch` was started or waited for.

        If the device was lost, the oldest running submission is at fault.
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
        """Make a sequence that can be played many times."""
        kernels = [] if self._stopwatch is None else [kernel for command in commands for kernel in command.kernels]
        sequence = unused or self._sequence(len(kernels) - self._host_sees)  # the last event has the last barrier
        try:
            self.barriers += fill(commands, sequence, self._host_sees, self._barrier_always)
        except self._faults.errors as error:
            raise self._told(error, Batch()) from error
        return Recorded(sequence, kernels, self._stopwatch, commands, sum(command.cost for command in commands))

    def runs(self, recorded: Recorded) -> bool:
        """Return whether a sequence was started and not yet waited for."""
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
        """Start built sequences behind everything recorded so far; do not wait."""
        self.enqueue(sequences)
        self._start_if_there_is_room()
