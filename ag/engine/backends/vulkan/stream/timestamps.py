"""Device timestamps: when each command of a sequence began and ended, on the host's clock.

The recorder takes its sequences from here while a profile is active, and from Kompute otherwise.  A device writes a
timestamp when everything before it is done, so a command's time includes its wait at a barrier, and of two commands
that overlapped the second has only what it took longer.  Knows no command but by its kernel's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

from ag.engine.backend import Event
from ag.engine.backends.vulkan.kp_types import Manager, Sequence
from ag.errors import DeviceError

__all__ = ["Counter", "Stopwatch"]


@dataclass(frozen=True)
class Counter:
    """What a device's timestamps count.

    Attributes
    ----------
    bits : int
        Valid bits of a reading; 0 if the device has no timestamps.
    period : float
        Nanoseconds per tick.
    """

    bits: int
    period: float

    def passed(self, since: int, until: int) -> int:
        """Ticks between two readings; none where the clock, that of a software driver, was set back."""
        ticks = (until - since) % (1 << self.bits)  # the counter may have started again at 0
        return ticks if 2 * ticks < 1 << self.bits else 0


class Stopwatch:
    """The counter of one device, as `time.perf_counter_ns` counts.

    Parameters
    ----------
    manager : kp.Manager
    counter : Counter
    device : str
        The device's name.
    events : list of Event
        Where commands are noted when they were waited for.

    Raises
    ------
    DeviceError
        If the device has no timestamps.
    """

    def __init__(self, manager: Manager, counter: Counter, device: str, events: list[Event]) -> None:
        if not counter.bits:
            product = manager.get_device_properties()["device_name"]
            raise DeviceError(f"profile: {device} ({product}) has no timestamps; profile another device.")
        self._manager, self._counter, self._device, self._events = manager, counter, device, events
        before = perf_counter_ns()
        (self._last,) = manager.sequence(0, 1).eval().get_timestamps()
        self._origin = (before + perf_counter_ns()) // 2  # right to half the time of a submission
        self._ticks = 0

    def sequence(self, operations: int) -> Sequence:
        """An empty sequence for so many operations."""
        return self._manager.sequence(0, operations + 1)

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
