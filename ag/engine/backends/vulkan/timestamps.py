"""Time each command of a sequence by the device's timestamps, on the host's clock.

A device writes a timestamp when everything before it is done.  So a command's time includes its wait at a barrier, and
the second of two overlapping commands has only the time by which it ended later.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

from ag.engine.backend import Event
from ag.engine.backends.vulkan.kp import Manager
from ag.errors import DeviceError


@dataclass(frozen=True)
class Counter:
    """The counter behind a device's timestamps."""

    bits: int  # of a reading that are valid; 0: the device has no timestamps
    period: float  # nanoseconds per tick

    def passed(self, since: int, until: int) -> int:
        """Return the ticks between two readings; 0 if the clock, that of a software driver, was set back."""
        ticks = (until - since) % (1 << self.bits)  # the counter may have started again at 0
        return ticks if 2 * ticks < 1 << self.bits else 0


class Stopwatch:
    """Note commands in `events` after they were waited for; DeviceError if the device has no timestamps."""

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
        """Add events for commands, given the counter before the first and after each."""
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
