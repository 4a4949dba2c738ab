"""The command stream: the only file that records into sequences of Kompute and submits them, and waits.

Uploads pass through a ring of staging chunks.  Commands go into one open sequence; `submit` starts it and opens the
next, and nothing waits until a host needs a value.  Every submission has a ticket, a growing number; waiting for a
ticket waits for everything before it too, as one queue runs in order.  While a profile is active,
`ag.engine.backends.vulkan.timestamps` makes the sequences.  A barrier is recorded only where the hazard tracker asks
for one, and at the start of every sequence.  Knows addresses and commands, and no buffer or primitive; the Vulkan
backend is its only caller.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ag.engine.arena import OFFSET_BITS
from ag.engine.backend import Event, Meter
from ag.engine.backends.vulkan.hazards import HazardTracker, Range
from ag.engine.backends.vulkan.kp_types import Algorithm, Manager, Sequence, Tensor, Words
from ag.engine.backends.vulkan.loader import DRIVERS, kompute
from ag.engine.backends.vulkan.timestamps import Counter, Stopwatch, TimedSequence
from ag.errors import DeviceError

__all__ = ["Command", "Recorder"]

_COMMANDS_PER_SUBMIT = 256  # start the device while the host goes on recording
_MOST_IN_FLIGHT = 8
_STAGING_BYTES = 4 << 20
_STAGING_CHUNKS = 4
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


@dataclass(frozen=True)
class Command:
    """One dispatch: its kernel's name, algorithm, push constants, grid, and the byte ranges it touches."""

    kernel: str
    algorithm: Algorithm
    push: bytes
    grid: tuple[int, int, int]
    reads: list[Range]
    writes: list[Range]


class _Submission(NamedTuple):
    """A sequence that was started: its ticket, where it goes to be recorded anew after that, who is told its time."""

    ticket: int
    sequence: Sequence
    idle: list[Sequence] | None
    meter: Meter | None


class Recorder:
    """Command stream of one device.

    Parameters
    ----------
    manager : kp.Manager
    name : str
        The device's name, for messages.
    segments : list of kp.Tensor
        The arena's segments; the backend appends to it.
    """

    def __init__(self, manager: Manager, name: str, segments: list[Tensor]) -> None:
        self._manager = manager
        self._name = name
        self._segments = segments
        self._kp = kompute()
        self._tracker = HazardTracker()
        self._barrier_always = os.environ.get("AG_BARRIER_ALL") == "1"  # for synchronization validation
        self._stopwatch: Stopwatch | None = None
        self._meter: Meter | None = None
        properties = manager.get_device_properties()
        self._counter = Counter(properties["timestamp_valid_bits"], properties["timestamp_period"])
        self.timestamps = self._counter.bits > 0
        self._idle: dict[object, list[Sequence]] = {}  # by what they have timestamps for
        self._open = self._unused()
        self._commands = 0
        self._ticket = 0  # of the open sequence
        self._in_flight: deque[_Submission] = deque()
        # Staging memory, and views of it: made now, so that whoever runs out of memory can still read results.
        self._landing = self._host_tensor()
        self._chunks = [self._host_tensor() for _ in range(_STAGING_CHUNKS)]
        self._chunk_tickets = [-1] * _STAGING_CHUNKS
        self._chunk = 0
        self._chunk_used = 0
        self.barriers = 0
        self.submits = 0
        self.lost = False

    # -------------------------------------------------------------------------------------- commands

    def dispatch(self, command: Command) -> None:
        """Record a dispatch."""
        barrier = self._needs_barrier(command.reads, command.writes)
        self._open.dispatch(command.algorithm, command.push, *command.grid, barrier)
        if isinstance(self._open, TimedSequence):
            self._open.kernels.append(command.kernel)
        self._count()

    def _needs_barrier(self, reads: list[Range], writes: list[Range]) -> bool:
        needed = self._tracker.launch(reads, writes) or self._commands == 0 or self._barrier_always
        self.barriers += needed
        return needed

    def _count(self) -> None:
        self._commands += 1
        if self._commands >= _COMMANDS_PER_SUBMIT:
            self.submit()

    def submit(self) -> None:
        """Start what was recorded; does not wait."""
        if self._commands == 0:
            return
        self._start(self._open, self._idle.setdefault(self.timing, []))
        self._open = self._unused()
        self._commands = 0
        self._tracker.barrier()

    @property
    def timing(self) -> object:
        """What sequences made now have timestamps for: every command, both ends, or nothing, as they cost time."""
        return self._stopwatch or ("ends" if self._meter is not None else None)

    def _unused(self) -> Sequence:
        """An empty sequence to record into."""
        idle = self._idle.get(self.timing)
        if not idle:
            return self._sequence(_COMMANDS_PER_SUBMIT)
        sequence = idle.pop()
        sequence.clear()
        return sequence

    def _sequence(self, commands: int) -> Sequence:
        """A new sequence for so many commands, with the timestamps that somebody asks for."""
        if self._stopwatch is not None:
            return self._stopwatch.sequence(commands)
        return self._manager.sequence() if self._meter is None else self._manager.sequence(0, 1)

    def retime(self, events: list[Event] | None) -> None:
        """From now on note every command in `events`, timed by the device; None ends that."""
        self.wait()
        self._stopwatch = None if events is None else Stopwatch(self._manager, self._counter, self._name, events)
        self._idle.clear()
        self._open = self._unused()

    def meter(self, meter: Meter | None) -> None:
        """Have the time of what is recorded from now on added to this meter when it was waited for; None: to none."""
        if meter is self._meter or not self.timestamps:
            return
        self.submit()
        self._idle.setdefault(self.timing, []).append(self._open)
        self._meter = meter
        self._open = self._unused()

    def _start(self, sequence: Sequence, idle: list[Sequence] | None = None) -> None:
        DRIVERS.check_not_inherited(self._name)
        while len(self._in_flight) >= _MOST_IN_FLIGHT:
            self._wait_oldest()
        with self._errors():
            sequence.eval_async()
        self._in_flight.append(_Submission(self._ticket, sequence, idle, self._meter))
        self._ticket += 1
        self.submits += 1

    def _wait_oldest(self) -> None:
        done = self._in_flight.popleft()
        with self._errors():
            done.sequence.eval_await()
        if done.meter is not None:
            begin, *_, end = done.sequence.get_timestamps()
            done.meter.seconds += self._counter.passed(begin, end) * self._counter.period * 1e-9
        if done.idle is not None:
            done.idle.append(done.sequence)

    def wait(self, ticket: int | None = None) -> None:
        """Submit, and wait for a ticket, or for everything."""
        if ticket is None or ticket >= self._ticket:
            self.submit()
        while self._in_flight and (ticket is None or self._in_flight[0].ticket <= ticket):
            self._wait_oldest()

    @property
    def in_flight(self) -> int:
        """Number of submissions not yet waited for."""
        return len(self._in_flight)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._kp.DeviceLostError as error:
            self._in_flight.clear()
            self.lost = True
            raise DeviceError(f"{self._name}: the device was lost ({error}); its tensors are gone. Restart the process "
                              f"and go on from the last checkpoint.") from error

    # -------------------------------------------------------------------------------------- programs

    def build(self, commands: list[Command]) -> Sequence:
        """A sequence that can be played many times."""
        sequence = self._sequence(len(commands))
        tracker = HazardTracker()
        for i, c in enumerate(commands):
            barrier = tracker.launch(c.reads, c.writes) or i == 0 or self._barrier_always
            self.barriers += barrier
            sequence.dispatch(c.algorithm, c.push, *c.grid, barrier)
            if isinstance(sequence, TimedSequence):
                sequence.kernels.append(c.kernel)
        return sequence

    def play(self, sequence: Sequence) -> None:
        """Start a built sequence after everything recorded so far; does not wait."""
        self.submit()
        for running in list(self._in_flight):
            if running.sequence is sequence:  # one command buffer cannot be in the queue twice
                self.wait(running.ticket)
        self._start(sequence)

    # -------------------------------------------------------------------------------------- transfers

    def upload(self, address: int, words: Words) -> None:
        """Copy host words to an arena address, through the staging ring; does not wait for the device."""
        start = 0
        while start < words.size:
            chunk, view, at, room = self._staging_room(words.size - start)
            view[at : at + room] = words[start : start + room]
            self._copy_in(chunk, at, address + 4 * start, room)
            start += room

    def _staging_room(self, wanted: int) -> tuple[Tensor, Words, int, int]:
        capacity = _STAGING_BYTES // 4
        if self._chunk_used >= capacity:
            self._chunk = (self._chunk + 1) % _STAGING_CHUNKS
            self._chunk_used = 0
            self.wait(self._chunk_tickets[self._chunk])
        at, room = self._chunk_used, min(wanted, capacity - self._chunk_used)
        self._chunk_used += room
        tensor, view = self._chunks[self._chunk]
        return tensor, view, at, room

    def _host_tensor(self) -> tuple[Tensor, Words]:
        tensor = self._manager.tensor_t(np.zeros(_STAGING_BYTES // 4, np.uint32), self._kp.TensorTypes.host)
        return tensor, tensor.data()

    def _copy_in(self, chunk: Tensor, at: int, address: int, count: int) -> None:
        barrier = self._needs_barrier([], [(address, address + 4 * count)])
        segment = self._segments[address >> OFFSET_BITS]
        self._open.record(self._kp.OpCopy(chunk, segment, [(4 * at, address & _OFFSET_MASK, 4 * count)], barrier))
        self._chunk_tickets[self._chunk] = self._ticket
        self._count()

    def assign(self, target: int, source: int, count: int) -> None:
        """Copy words between arena addresses; does not wait."""
        barrier = self._needs_barrier([(source, source + 4 * count)], [(target, target + 4 * count)])
        region = (source & _OFFSET_MASK, target & _OFFSET_MASK, 4 * count)
        segments = self._segments[source >> OFFSET_BITS], self._segments[target >> OFFSET_BITS]
        self._open.record(self._kp.OpCopy(*segments, [region], barrier))
        self._count()

    def download(self, address: int, count: int) -> Words:
        """Words at an arena address; waits."""
        tensor, view = self._landing
        result = np.empty(count, np.uint32)
        for start in range(0, count, view.size):
            length = min(view.size, count - start)
            begin = address + 4 * start
            barrier = self._needs_barrier([(begin, begin + 4 * length)], [])
            region = (begin & _OFFSET_MASK, 0, 4 * length)
            self._open.record(self._kp.OpCopy(self._segments[begin >> OFFSET_BITS], tensor, [region], barrier))
            self._open.record(self._kp.OpBarrier(host=True))
            self._commands += 1
            self.wait()
            result[start : start + length] = view[:length]
        return result
